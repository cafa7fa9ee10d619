#include "lstm/cpu/tiles.h"
#include "recurrent/cpu/cell_neon.h"

namespace qcore {
namespace {
using Tiles = LstmTiles<CellNeon, DotWords>;
}

extern const RecurrentKernels kLstmNeon = {Tiles::pack, Tiles::unpack, Tiles::inputs, Tiles::step, Tiles::finish_step};

}  // namespace qcore
