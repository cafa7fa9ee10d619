#include <algorithm>
#include <cstring>

#include "awq/awq_arrays.h"
#include "awq/dispatch.h"
#include "awq/pack.h"
#include "formats/packed_weight.h"
#include "runtime/check.h"
#include "runtime/device.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace qcore {
namespace {

constexpr std::int64_t kRows = PackedLayout::kPanelRows;
constexpr std::int64_t kPanelsTogether = 8;  // 64 bytes of each row of words
constexpr std::int64_t kRowsTogether = 256;  // that stay in the second-level cache for all of them

// A range of rows that begins with a step.
void pack_codes(const AwqWeight& weight, const PackedLayout& layout, std::int64_t panel, std::int64_t begin,
                std::int64_t end, std::uint8_t* codes) {
  const std::int64_t first = panel * kRows, columns = std::min(kRows, weight.n - first);
  const AwqKernels* kernels = awq_kernels_in_use();
  if (kernels && weight.has_whole_rows() && weight.group_size % layout.step_k() == 0) {
    const std::uint32_t* words = weight.qweight + begin * weight.qweight_row + first / 8;
    const AwqRows rows{words, weight.qweight_row, end - begin, columns, nullptr, nullptr};
    return kernels->pack_panel(rows, codes + layout.place(first, begin).byte);
  }
  for (std::int64_t k = begin; k < end; ++k)
    for (std::int64_t n = first; n < first + columns; ++n) {
      const auto place = layout.place(n, k);
      std::uint8_t& byte = codes[place.byte];
      byte = static_cast<std::uint8_t>((byte & ~(15 << place.shift)) | awq_code(weight, k, n) << place.shift);
    }
}

void pack_parameters(const AwqWeight& weight, const PackedLayout& layout, std::int64_t panel, float* scales,
                     float* offsets, const char* op) {
  for (std::int64_t p = 0; p < layout.blocks(); ++p)
    for (std::int64_t n = panel * kRows; n < std::min(weight.n, (panel + 1) * kRows); ++n) {
      const std::uint16_t scale = awq_scale(weight, p, n);
      const std::int64_t at = layout.parameter_index(n, p);
      scales[at] = numerics::half_to_float(scale);
      offsets[at] = numerics::awq_offset(awq_zero(weight, p, n), scale);
      QCORE_CHECK_VALUE(numerics::is_finite(scales[at]), op, ": scales holds ", scales[at], " at group ", p,
                        ", column ", n, ", expected finite numbers");
    }
}

}  // namespace

std::shared_ptr<PackedWeight> allocate_awq_weight(const AwqWeight& weight, AwqStorage storage) {
  const auto allocate = [&](std::int64_t bytes) {
    return storage == AwqStorage::kept ? allocate_on(weight.device, bytes)
                                       : scratch_on(weight.device, bytes, weight.stream);
  };
  auto packed = std::make_shared<PackedWeight>();
  packed->layout = PackedLayout(weight.n, weight.k, 1, weight.group_size, 4);
  packed->shape[0] = weight.n;
  packed->shape[1] = weight.k;
  packed->scheme = Scheme::asymmetric;
  packed->has_zero_points = true;
  packed->device = weight.device;
  packed->set_memory(allocate(StorageLayout(packed->layout, sizeof(float), sizeof(float)).bytes), false, false);
  return packed;
}

std::shared_ptr<PackedWeight> pack_awq_on_cpu(const AwqWeight& weight, const char* op) {
  auto packed = allocate_awq_weight(weight, AwqStorage::kept);
  const PackedLayout& layout = packed->layout;
  auto* codes = const_cast<std::uint8_t*>(packed->codes);
  auto* scales = static_cast<float*>(const_cast<void*>(packed->scales.data));
  auto* offsets = static_cast<float*>(const_cast<void*>(packed->offsets.data));
  parallel_for(ceil_div(layout.panels(), kPanelsTogether), [&](std::int64_t task) {
    const std::int64_t end = std::min(layout.panels(), (task + 1) * kPanelsTogether);
    const std::int64_t begin = task * kPanelsTogether, parameters = layout.blocks() * kRows;
    if (layout.n % kRows != 0 || layout.block_size % layout.step_k() != 0) {  // there is padding
      const std::int64_t panels = end - begin;
      std::memset(codes + begin * layout.panel_bytes(), 0x88, static_cast<std::size_t>(panels * layout.panel_bytes()));
      std::fill_n(scales + begin * parameters, panels * parameters, 0.0f);
      std::fill_n(offsets + begin * parameters, panels * parameters, 0.0f);
    }
    for (std::int64_t k = 0; k < weight.k; k += kRowsTogether)
      for (std::int64_t panel = begin; panel < end; ++panel)
        pack_codes(weight, layout, panel, k, std::min(weight.k, k + kRowsTogether), codes);
    for (std::int64_t panel = begin; panel < end; ++panel) pack_parameters(weight, layout, panel, scales, offsets, op);
  });
  return packed;
}

}  // namespace qcore
