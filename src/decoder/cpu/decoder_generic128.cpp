#include "decoder/cpu/attention_tile.h"
#include "simd/lanes_generic128.h"

namespace qcore {
namespace {

struct Lanes : GenericLanes128 {
  QCORE_NUMERIC F load_codes(const std::int8_t* p) { return to_float(load_bytes_signed(p)); }
  // Stores lanes in the range of int8.
  QCORE_NUMERIC void store_codes(std::int8_t* p, I x) { store_low_bytes(p, x); }
};

}  // namespace

extern const DecoderKernels kDecoderGeneric128 = {
    RowLanes<Lanes>::load_row,     RowLanes<Lanes>::store_row, RowLanes<Lanes>::add_row,
    RowLanes<Lanes>::multiply_row, RowLanes<Lanes>::scale_row, RowLanes<Lanes>::normalize_row,
    RowLanes<Lanes>::gate_row,     RowLanes<Lanes>::cap_row,   RowLanes<Lanes>::rotate_row,
    RowLanes<Lanes>::quantize_row, AttentionLanes<Lanes>::run, RowLanes<Lanes>::merge_row,
};

}  // namespace qcore
