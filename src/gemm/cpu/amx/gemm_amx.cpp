#include "gemm/cpu/amx/byte_tiles.h"

namespace qcore {

extern const BlockKernels kInt8Amx = {kAmxRows,
                                      kAmxPanels,
                                      kAmxRows * kAmxPanels,
                                      1,
                                      &kRowsAvx512,
                                      PackRows<Avx512, std::int8_t>::run,
                                      run_amx_tile_of_size<AmxBytes>,
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
                                      release_tiles};

}  // namespace qcore
