#include "formats/element.h"
#include "quantize/block_reader.h"
#include "quantize/dequantize.h"
#include "runtime/memory.h"

namespace qcore {

void run_dequantize_cpu(const DequantizeProblem& problem, const DequantizeKernels& kernels) {
  const PackedWeight& weight = problem.weight;
  const TensorView& out = problem.out;
  const PackedLayout& layout = weight.layout;
  const BlockReader reader(weight);
  const std::int64_t stride = out.strides[1];
  for_each_block(layout, [&](std::int64_t row, std::int64_t p, std::int64_t tap) {
    const std::int64_t length = layout.block_length(p), at = WeightRows{out}.offset(row, layout.block_begin(p), tap);
    const PackedWeight::BlockDecoder decoder = weight.decoder(row, p);
    const float scale = decoder.scale, offset = decoder.offset;
    Scratch scratch;
    std::int8_t* codes = scratch.take<std::int8_t>(length);
    reader.read(row, p, tap, codes);
    if (decoder.shift) {  // codes that int8 may not hold
      for (std::int64_t i = 0; i < length; ++i)
        store_float(out.data, out.dtype, at + i * stride, decoder.value(codes[i]));
    } else if (stride != 1) {
      float* values = scratch.take<float>(length);
      kernels.to_float(codes, length, scale, offset, values);
      for (std::int64_t i = 0; i < length; ++i) store_float(out.data, out.dtype, at + i * stride, values[i]);
    } else if (out.dtype == DType::f32) {
      kernels.to_float(codes, length, scale, offset, static_cast<float*>(out.data) + at);
    } else {
      const auto convert = out.dtype == DType::f16 ? kernels.to_half : kernels.to_bfloat;
      convert(codes, length, scale, offset, static_cast<std::uint16_t*>(out.data) + at);
    }
  });
}

}  // namespace qcore
