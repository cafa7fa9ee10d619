#include "gemm/cpu/amx/byte_tiles.h"

namespace qcore {

extern const BlockKernels kInt8Amx = {kAmxRows,
                                      kAmxPanels,
                                      kAmxRows * kAmxPanels,
                                      1,
                                      Rows<Avx512>::widen,
                                      Transpose<Avx512>::run,
                                      PackRows<Avx512, std::int8_t>::run,
                                      run_amx_tile_of_size<AmxBytes>,
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
                                      release_tiles};

}  // namespace qcore
