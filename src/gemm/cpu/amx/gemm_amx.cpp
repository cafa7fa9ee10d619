#include "gemm/cpu/amx/byte_tiles.h"

namespace qcore {

// The weights of a run lie in the second-level cache while all tiles of a column multiply them.
constexpr std::int64_t kRunBytes = 128 << 10;

extern const BlockKernels kInt8Amx = {kAmxRows,
                                      kAmxPanels,
                                      kAmxRows * kAmxPanels,
                                      1,
                                      Rows<Avx512>::widen,
                                      Transpose<Avx512>::run,
                                      PackRows<Avx512, std::int8_t>::run,
                                      run_byte_tile,
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
                                      decoded_panel_bytes,
                                      kRunBytes,
                                      release_tiles};

}  // namespace qcore
