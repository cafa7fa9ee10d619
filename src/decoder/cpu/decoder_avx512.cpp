#include "decoder/cpu/attention_tile.h"
#include "decoder/cpu/lanes_avx512.h"

namespace qcore {

extern const DecoderKernels kDecoderAvx512 = {
    RowLanes<Avx512Lanes>::load_row,     RowLanes<Avx512Lanes>::store_row, RowLanes<Avx512Lanes>::add_row,
    RowLanes<Avx512Lanes>::multiply_row, RowLanes<Avx512Lanes>::scale_row, RowLanes<Avx512Lanes>::normalize_row,
    RowLanes<Avx512Lanes>::gate_row,     RowLanes<Avx512Lanes>::cap_row,   RowLanes<Avx512Lanes>::rotate_row,
    RowLanes<Avx512Lanes>::quantize_row, AttentionLanes<Avx512Lanes>::run, RowLanes<Avx512Lanes>::merge_row,
};

}  // namespace qcore
