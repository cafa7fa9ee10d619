#include "gru/cpu/gru_tiles.h"
#include "recurrent/cpu/cell_avxvnni.h"

namespace qcore {
namespace {
using Tiles = GruTiles<CellAvx2, DotVnni>;
}

extern const RecurrentKernels kGruAvxVnni = {Tiles::pack, Tiles::unpack, Tiles::inputs, Tiles::step,
                                             Tiles::finish_step};

}  // namespace qcore
