#include "lstm/cpu/tiles.h"
#include "recurrent/cpu/cell_avx512.h"

namespace qcore {
namespace {
using Tiles = LstmTiles<CellAvx512, DotAvx512>;
}

extern const RecurrentKernels kLstmAvx512Vnni = {Tiles::pack, Tiles::unpack, Tiles::inputs, Tiles::step,
                                                 Tiles::finish_step};

}  // namespace qcore
