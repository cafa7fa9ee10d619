#include "gru/cpu/gru_tiles.h"
#include "gru/cpu/gru_vector_avx512.h"

namespace qcore {
namespace {
using Tiles = GruTiles<GruAvx512, GruDotAvx512>;
}

extern const GruKernels kGruAvx512Vnni = {Tiles::pack, Tiles::unpack, Tiles::inputs, Tiles::step};

}  // namespace qcore
