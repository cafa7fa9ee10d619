#include "gemm/cpu/amx/bfloat_tiles.h"

namespace qcore {

extern const BlockKernels kFloatAmx = {kAmxRows,
                                       kAmxPanels,
                                       kAmxRows * kAmxPanels,
                                       sizeof(std::uint16_t),
                                       &kRowsAvx512,
                                       pack_bfloats,
                                       run_amx_tile_of_size<AmxBfloats>,
                                       nullptr,
                                       0,
                                       0,
                                       true,
                                       0,
                                       decode_bfloats,
                                       nullptr,
                                       decoded_panel_bytes<AmxBfloats>,
                                       kAmxRunBytes,
                                       1280 << 10,  // of the second-level cache, 2 MiB: fewer rows decode more often
                                       release_tiles};

}  // namespace qcore
