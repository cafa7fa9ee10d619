#include "lstm/cpu/tiles.h"
#include "recurrent/cpu/cell_generic128.h"

namespace qcore {
namespace {
using Tiles = LstmTiles<CellGeneric128, DotWords>;
}

extern const RecurrentKernels kLstmGeneric128 = {Tiles::pack, Tiles::unpack, Tiles::inputs, Tiles::step,
                                                 Tiles::finish_step};

}  // namespace qcore
