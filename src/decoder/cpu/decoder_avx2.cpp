#include "decoder/cpu/attention_tile.h"
#include "decoder/cpu/lanes_avx2.h"

namespace qcore {

extern const DecoderKernels kDecoderAvx2 = {
    RowLanes<Avx2Lanes>::load_row,     RowLanes<Avx2Lanes>::store_row, RowLanes<Avx2Lanes>::add_row,
    RowLanes<Avx2Lanes>::multiply_row, RowLanes<Avx2Lanes>::scale_row, RowLanes<Avx2Lanes>::normalize_row,
    RowLanes<Avx2Lanes>::gate_row,     RowLanes<Avx2Lanes>::cap_row,   RowLanes<Avx2Lanes>::rotate_row,
    RowLanes<Avx2Lanes>::quantize_row, AttentionLanes<Avx2Lanes>::run, RowLanes<Avx2Lanes>::merge_row,
};

}  // namespace qcore
