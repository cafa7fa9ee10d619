#include "gru/cpu/gru_tiles.h"
#include "recurrent/cpu/cell_neon_dotprod.h"

namespace qcore {
namespace {
using Tiles = GruTiles<CellNeon, DotBytes, true>;
}

extern const RecurrentKernels kGruNeonDotprod = {Tiles::pack, Tiles::unpack, Tiles::inputs, Tiles::step,
                                                 Tiles::finish_step};

}  // namespace qcore
