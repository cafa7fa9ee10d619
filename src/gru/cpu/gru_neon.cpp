#include "gru/cpu/gru_tiles.h"
#include "recurrent/cpu/cell_neon.h"

namespace qcore {
namespace {
using Tiles = GruTiles<CellNeon, DotWords>;
}

extern const RecurrentKernels kGruNeon = {Tiles::pack, Tiles::unpack, Tiles::inputs, Tiles::step, Tiles::finish_step};

}  // namespace qcore
