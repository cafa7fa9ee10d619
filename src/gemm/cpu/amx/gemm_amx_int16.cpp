#include "gemm/cpu/amx/byte_tiles.h"

namespace qcore {

extern const BlockKernels kInt16Amx = {kTileRows,  // in two planes
                                       kAmxPanels,
                                       kTileRows * kAmxPanels,
                                       sizeof(std::int16_t),
                                       &kRowsAvx512,
                                       PackRows<Avx512, std::int16_t, StoreBytePlanes>::run,
                                       run_word_tile,
                                       nullptr,
                                       0,
                                       0,
                                       true,
                                       0,
                                       decode_bytes,
                                       nullptr,
                                       decoded_panel_bytes<AmxBytes>,
                                       kAmxRunBytes,
                                       768 << 10,
                                       release_tiles,
                                       1};

}  // namespace qcore
