#include "static/cpu/amx_tile.h"
#include "static/cpu/transpose.h"

namespace qcore {

// Layers whose channels have windows of their own run on kStaticAvx512Vnni.
extern const StaticTileKernels kStaticAmx = {
    kStaticAmxPanels, 0, AmxStaticTile::run, nullptr, transpose_bytes, false, kAmxRows, true, release_tiles};

}  // namespace qcore
