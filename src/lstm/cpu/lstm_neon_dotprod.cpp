#include "lstm/cpu/tiles.h"
#include "recurrent/cpu/cell_neon_dotprod.h"

namespace qcore {
namespace {
using Tiles = LstmTiles<CellNeon, DotBytes, true>;
}

extern const RecurrentKernels kLstmNeonDotprod = {Tiles::pack, Tiles::unpack, Tiles::inputs, Tiles::step,
                                                  Tiles::finish_step};

}  // namespace qcore
