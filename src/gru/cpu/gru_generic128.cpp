#include "gru/cpu/gru_tiles.h"
#include "recurrent/cpu/cell_generic128.h"

namespace qcore {
namespace {
using Tiles = GruTiles<CellGeneric128, DotWords>;
}

extern const RecurrentKernels kGruGeneric128 = {Tiles::pack, Tiles::unpack, Tiles::inputs, Tiles::step,
                                                Tiles::finish_step};

}  // namespace qcore
