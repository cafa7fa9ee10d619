#include <algorithm>

#include "gemm/cuda/encoded/expand_weight.cuh"
#include "gemm/cuda/encoded/parameter_column.cuh"
#include "gemm/cuda/encoded/plane_words.cuh"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/ptx_launch.cuh"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kRows = PackedLayout::kPanelRows;
constexpr int kLanes = 4;  // neighboring rows whose parameters a thread expands
constexpr int kGroupSteps = static_cast<int>(Planes::kGroup), kVectorUnits = 4;  // of 16 bytes, each of 4 rows

struct Arguments {
  DeviceEncoded w;
  std::int64_t first_panel, code_panel_bytes;
  int steps, groups, parameters;  // of a panel: words of four codes of 16 rows, groups of planes, scales
  // A block's steps if some of them are padded, 0 if only the last step of the row may be.
  int padded_steps;
  std::uint32_t codebook[4];  // 16 bytes, 128 added to each
  bool lets_next_start;       // the kernel behind expand_parameters
  ParameterForm form;
  bool has_form;  // otherwise parameters are computed as on the host, which takes longer
  std::int64_t scale_bytes, offset_bytes, supers;  // of a panel; super-parameters of a row
  uint4* codes;
  float *scales, *offsets;
};

// The codes of a step behind the end of its block are 0, stored as 128.
__device__ __forceinline__ uint4 without_padding(const Arguments& a, int step, uint4 codes) {
  const PackedLayout& layout = a.w.layout;
  const int p = a.padded_steps ? step / a.padded_steps : 0;
  const auto left = static_cast<int>(a.padded_steps ? layout.block_length(p) - 4 * (step - p * a.padded_steps)
                                                    : layout.k - 4 * static_cast<std::int64_t>(step));
  if (left >= 4) return codes;
  const std::uint32_t mask = left > 0 ? (1u << (8 * left)) - 1 : 0u, zeros = 0x80808080u & ~mask;
  return {(codes.x & mask) | zeros, (codes.y & mask) | zeros, (codes.z & mask) | zeros, (codes.w & mask) | zeros};
}

// A thread takes four rows of a group of planes, 32 k; blockIdx.y goes over the panels.
template <int kBits, bool kCodebook>
__global__ void __launch_bounds__(kThreads) expand_codes_kernel(const __grid_constant__ Arguments a) {
  ptx::let_next_kernel_start();
  const int at = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int group = at / kVectorUnits, unit = at % kVectorUnits;
  if (group >= a.groups) return;
  const std::int64_t panel = blockIdx.y;
  const auto* from = reinterpret_cast<const uint4*>(a.w.codes + (a.first_panel + panel) * a.code_panel_bytes) +
                     static_cast<std::int64_t>(group) * (kBits * kVectorUnits) + unit;
  uint4 vectors[kBits];
#pragma unroll
  for (int i = 0; i < kBits; ++i) vectors[i] = from[i * kVectorUnits];
  const std::uint32_t shift =
      kCodebook ? 0u : 0x01010101u * static_cast<std::uint32_t>(128 - a.w.encoded.encoding.zero);
  uint4* to = a.codes + panel * a.steps * kVectorUnits + unit;
  const bool padded = a.padded_steps || (group + 1) * kGroupSteps * 4 > a.w.layout.k;
#pragma unroll
  for (int quad = 0; quad < 4; ++quad) {
    const PlaneWords<kBits, kCodebook> words([&](int vector) { return vectors[vector]; }, quad, a.codebook);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int step = group * kGroupSteps + 2 * quad + half;
      uint4 codes{words.first[2 * half] + shift, words.first[2 * half + 1] + shift, words.second[2 * half] + shift,
                  words.second[2 * half + 1] + shift};
      if (padded) codes = without_padding(a, step, codes);
      if (step < a.steps) to[static_cast<std::int64_t>(step) * kVectorUnits] = codes;
    }
  }
}

// Writes the parameters at `at` and behind it, of kLanes rows and one block.
__device__ __forceinline__ void expand_parameters(const Arguments& a, int at) {
  const std::int64_t panel = blockIdx.y, from = a.first_panel + panel;
  const int lane = at % static_cast<int>(kRows), p = at / static_cast<int>(kRows);
  float scales[kLanes] = {}, offsets[kLanes] = {};
  if (a.has_form) {
    const EncodedWeight& w = a.w.encoded;
    visit_parameters<false>(w.scales.type, [&](auto type) {
      ParameterColumn<type.value, kLanes>{w.scales.data + from * a.scale_bytes,
                                          w.scales.super + from * a.supers * kRows, lane}
          .scales(a.form, p, scales);
    });
    if (a.offsets)
      visit_parameters<true>(w.offsets.type, [&](auto type) {
        ParameterColumn<type.value, kLanes>{w.offsets.data + from * a.offset_bytes,
                                            w.offsets.super + from * a.supers * kRows, lane}
            .offsets(a.form, p, scales, offsets);
      });
  }
  const std::int64_t row = from * kRows + lane, left = a.w.layout.n - row;
#pragma unroll
  for (int i = 0; i < kLanes; ++i) {
    if (i >= left) {
      scales[i] = offsets[i] = 0.0f;  // padding
    } else if (!a.has_form) {
      scales[i] = a.w.encoded.scale(row + i, p);
      if (a.offsets) offsets[i] = a.w.encoded.offset(row + i, p);
    }
  }
  const std::int64_t to = panel * a.parameters + at;
  *reinterpret_cast<float4*>(a.scales + to) = {scales[0], scales[1], scales[2], scales[3]};
  if (a.offsets) *reinterpret_cast<float4*>(a.offsets + to) = {offsets[0], offsets[1], offsets[2], offsets[3]};
}

// A thread writes kLanes scales, and as many offsets. Overlaps with expand_codes where that is launched, before which
// every earlier kernel has ended, and whose results it does not need; it ends behind it, for the next kernel waits for
// this one alone.
__global__ void __launch_bounds__(kThreads) expand_parameters_kernel(const __grid_constant__ Arguments a) {
  if (a.lets_next_start) ptx::let_next_kernel_start();
  const int at = (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * kLanes;
  if (at < a.parameters) expand_parameters(a, at);
  ptx::wait_for_earlier_kernels();
}

void launch_codes(const Arguments& a, int panels, cudaStream_t stream) {
  const WeightEncoding& encoding = a.w.encoded.encoding;
  const auto kernel = encoding.has_codebook ? expand_codes_kernel<4, true>
                      : encoding.bits == 2  ? expand_codes_kernel<2, false>
                      : encoding.bits == 3  ? expand_codes_kernel<3, false>
                      : encoding.bits == 4  ? expand_codes_kernel<4, false>
                      : encoding.bits == 5  ? expand_codes_kernel<5, false>
                      : encoding.bits == 6  ? expand_codes_kernel<6, false>
                                            : expand_codes_kernel<8, false>;
  launch("expand_codes", kernel,
         {dim3(static_cast<unsigned>(ceil_div(a.groups * kVectorUnits, kThreads)), static_cast<unsigned>(panels)),
          dim3(kThreads)},
         stream, a);
}

// Returns whether the planes are plain codes of 4 bits, which stand for -8 to 7 or for 0 to 15.
bool lies_as_plain_codes(const PackedWeight& weight) {
  const WeightEncoding& encoding = weight.encoded->encoding;
  const PackedLayout& layout = weight.layout;
  constexpr std::int64_t kGroup = kGroupSteps * 4, kPlainStep = 8;  // k
  return encoding.bits == 4 && !encoding.has_codebook && (encoding.zero == 0 || encoding.zero == 8) &&
         layout.k % kGroup == 0 && (layout.blocks() == 1 || layout.block_size % kPlainStep == 0);
}

}  // namespace

std::int64_t expanded_bytes(const PackedWeight& weight, std::int64_t panels) {
  const std::int64_t arrays = weight.has_offsets() ? 2 : 1;
  return panels * (weight.layout.panel_bytes() + weight.layout.blocks() * kRows * 4 * arrays);
}

ScratchPlan ExpandedWeight::plan(const PackedWeight& weight, std::int64_t first, std::int64_t panels,
                                 const User& user) {
  const PackedLayout& layout = weight.layout;
  const std::int64_t n = std::min(layout.n - first * kRows, panels * kRows);
  const bool in_place = lies_as_plain_codes(weight) && (weight.encoded->encoding.zero != 0 || user.from_zero);
  counts_from_zero_ = in_place && weight.encoded->encoding.zero == 0;
  plain_.layout = PackedLayout(n, layout.k, 1, layout.block_size, in_place ? 4 : 8);
  plain_.shape[0] = n, plain_.shape[1] = layout.k;
  plain_.scheme = weight.scheme;
  // The product of such a scale and a small integer is exact.
  const WeightEncoding& encoding = weight.encoded->encoding;
  plain_.has_zero_points =
      in_place && !counts_from_zero_ && encoding.offsets == ParameterType::z4 && encoding.scales == ParameterType::f16;
  plain_.device = weight.device;
  ScratchPlan plan;
  codes_ = plan.add<std::uint8_t>(in_place ? 0 : plain_.layout.code_bytes());
  scales_ = plan.add<float>(plain_.layout.parameter_count());
  offsets_ = plan.add<float>(weight.has_offsets() ? plain_.layout.parameter_count() : 0);
  return plan;
}

ExpandedWeight::ExpandedWeight(const PackedWeight& weight, std::int64_t first, std::int64_t panels, cudaStream_t stream,
                               const User& user)
    : scratch_(plan(weight, first, panels, user), weight.device.index, stream) {
  const PackedLayout& layout = plain_.layout;
  const bool in_place = layout.bits == 4;
  plain_.codes = in_place ? weight.codes + first * layout.panel_bytes() : scratch_[codes_];
  plain_.scales = {scratch_[scales_], false};
  if (weight.has_offsets()) plain_.offsets = {scratch_[offsets_], false};
  if (layout.steps() == 0) return;
  Arguments a{DeviceEncoded(weight)};
  const WeightEncoding& encoding = weight.encoded->encoding;
  a.code_panel_bytes = weight.encoded->code_panel_bytes(weight.layout);
  a.steps = static_cast<int>(layout.steps());
  a.groups = static_cast<int>(ceil_div(layout.steps(), kGroupSteps));
  a.parameters = static_cast<int>(layout.blocks() * kRows);
  a.lets_next_start = user.overlaps;
  a.has_form = (encoding.super_block & (encoding.super_block - 1)) == 0;
  if (a.has_form) a.form = ParameterForm(encoding);
  const EncodedWeight& encoded = *weight.encoded;
  a.scale_bytes = encoded.scales.panel_bytes();
  a.offset_bytes = encoding.offsets == ParameterType::none ? 0 : encoded.offsets.panel_bytes();
  a.supers = encoded.scales.supers();
  if (layout.blocks() > 1 && layout.block_size % 4) a.padded_steps = static_cast<int>(layout.block_steps(0));
  for (int i = 0; i < 16; ++i)
    a.codebook[i / 4] |= static_cast<std::uint32_t>(encoding.codebook[i] + 128) << (8 * (i % 4));
  constexpr std::int64_t kMaxGridRows = 65535;
  for (std::int64_t panel = 0; panel < layout.panels(); panel += kMaxGridRows) {
    const auto count = static_cast<int>(std::min(layout.panels() - panel, kMaxGridRows));
    a.first_panel = first + panel;
    if (!in_place) a.codes = reinterpret_cast<uint4*>(scratch_[codes_]) + panel * a.steps * kVectorUnits;
    a.scales = scratch_[scales_] + panel * a.parameters;
    a.offsets = weight.has_offsets() ? scratch_[offsets_] + panel * a.parameters : nullptr;
    if (!in_place) launch_codes(a, count, stream);
    LaunchShape shape{
        dim3(static_cast<unsigned>(ceil_div(a.parameters / kLanes, kThreads)), static_cast<unsigned>(count)),
        dim3(kThreads)};
    shape.overlap = !in_place && compute_capability(weight.device.index) >= 90;
    launch("expand_parameters", expand_parameters_kernel, shape, stream, a);
  }
}

}  // namespace qcore
