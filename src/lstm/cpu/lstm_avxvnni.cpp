#include "lstm/cpu/tiles.h"
#include "recurrent/cpu/cell_avxvnni.h"

namespace qcore {
namespace {
using Tiles = LstmTiles<CellAvx2, DotVnni>;
}

extern const RecurrentKernels kLstmAvxVnni = {Tiles::pack, Tiles::unpack, Tiles::inputs, Tiles::step,
                                              Tiles::finish_step};

}  // namespace qcore
