#include "gemm/cpu/amx/byte_tiles.h"

namespace qcore {

extern const BlockKernels kInt16Amx = {kTileRows,  // in two planes
                                       kAmxPanels,
                                       kTileRows * kAmxPanels,
                                       sizeof(std::int16_t),
                                       Rows<Avx512>::widen,
                                       Transpose<Avx512>::run,
                                       PackRows<Avx512, std::int16_t, StoreBytePlanes>::run,
                                       run_word_tile,
                                       Rows<Avx512>::store_row,
                                       nullptr,
                                       0,
                                       0,
                                       true,
                                       0,
                                       Expand<Avx512>::codes,
                                       Expand<Avx512>::parameters,
                                       decode_bytes,
                                       nullptr,
                                       decoded_panel_bytes<AmxBytes>,
                                       kAmxRunBytes,
                                       768 << 10,
                                       release_tiles,
                                       1};

}  // namespace qcore
