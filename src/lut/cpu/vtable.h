#pragma once

#include "lut/table_arrays.h"

// Declares what an instruction set provides. Included by files for one instruction set.
namespace qcore {

// The first three of DType.
enum class LutElement : std::uint8_t { f32, f16, bf16 };

struct LutRun {
  const void* x;
  void* y;
  std::int64_t count;
  LutElement element;  // of both
  bool past_cache;     // y is larger than the caches: its lines need not be read first, nor kept
};

constexpr std::int64_t kRowPadding = 32;

// A row of contiguous x and y.
struct LutRow {
  const void* x;
  LutElement x_element;
  void* y;
  LutElement y_element;
  std::int64_t count;
  bool past_cache;     // as of LutRun
  const char* x_next;  // the next row's x, which is read ahead, or null
  float* values;       // scratch, aligned to 64 bytes, for count rounded up to kRowPadding and kRowPadding more
};

struct LutKernels {
  void (*run)(const LutArrays& table, const LutRun& run);  // contiguous x and y
  void (*softmax_row)(const LutRow& row, const LutArrays& exp, const LutArrays& reciprocal);
  // weight: fp32, padded like the row with zeros, or null
  void (*rms_norm_row)(const LutRow& row, const float* weight, float eps, const LutArrays& rsqrt);
  void (*load_row)(const void* x, LutElement element, std::int64_t count, float* row);   // contiguous x
  void (*store_row)(const float* row, std::int64_t count, LutElement element, void* y);  // contiguous y
};

extern const LutKernels kLutAvx2;
extern const LutKernels kLutAvx512;
extern const LutKernels kLutNeon;
extern const LutKernels kLutGeneric128;

}  // namespace qcore
