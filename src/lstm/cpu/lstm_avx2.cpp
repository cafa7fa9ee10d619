#include "lstm/cpu/tiles.h"
#include "recurrent/cpu/cell_avx2.h"

namespace qcore {
namespace {
using Tiles = LstmTiles<CellAvx2, DotWords>;
}

extern const RecurrentKernels kLstmAvx2 = {Tiles::pack, Tiles::unpack, Tiles::inputs, Tiles::step, Tiles::finish_step};

}  // namespace qcore
