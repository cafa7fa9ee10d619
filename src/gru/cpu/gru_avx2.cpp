#include "gru/cpu/gru_tiles.h"
#include "recurrent/cpu/cell_avx2.h"

namespace qcore {
namespace {
using Tiles = GruTiles<CellAvx2, DotWords>;
}

extern const RecurrentKernels kGruAvx2 = {Tiles::pack, Tiles::unpack, Tiles::inputs, Tiles::step, Tiles::finish_step};

}  // namespace qcore
