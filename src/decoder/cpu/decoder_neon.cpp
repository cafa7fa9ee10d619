#include "decoder/cpu/attention_tile.h"
#include "simd/lanes_neon.h"

namespace qcore {
namespace {

struct Lanes : NeonLanes {
  QCORE_NUMERIC F load_codes(const std::int8_t* p) {
    std::int32_t four;
    memcpy(&four, p, 4);
    const int16x8_t words = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(words)));
  }
  // Stores lanes in the range of int8.
  QCORE_NUMERIC void store_codes(std::int8_t* p, I x) {
    const int16x4_t words = vqmovn_s32(x);
    const std::int32_t four = vget_lane_s32(vreinterpret_s32_s8(vqmovn_s16(vcombine_s16(words, words))), 0);
    memcpy(p, &four, 4);
  }
};

}  // namespace

extern const DecoderKernels kDecoderNeon = {
    RowLanes<Lanes>::load_row,     RowLanes<Lanes>::store_row, RowLanes<Lanes>::add_row,
    RowLanes<Lanes>::multiply_row, RowLanes<Lanes>::scale_row, RowLanes<Lanes>::normalize_row,
    RowLanes<Lanes>::gate_row,     RowLanes<Lanes>::cap_row,   RowLanes<Lanes>::rotate_row,
    RowLanes<Lanes>::quantize_row, AttentionLanes<Lanes>::run, RowLanes<Lanes>::merge_row,
};

}  // namespace qcore
