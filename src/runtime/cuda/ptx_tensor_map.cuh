#pragma once

#if defined(__CUDACC__)
#include <cuda.h>
#endif

#include <string>

#include "qcore/error.h"
#include "runtime/cuda/cuda_check.h"
#include "runtime/cuda/ptx_wgmma.cuh"

// Matrices which the copy engine of sm_90 knows by a description, and its copies of their parts.
namespace qcore::ptx {

// A matrix of values of 2, 4 or 8 bytes, and the part of it that is copied at a time: up to 256 rows of up to 256
// columns.
struct MatrixParts {
  const void* data;  // a multiple of 16 bytes, as are the rows
  int value_bytes;
  std::int64_t rows, columns;  // from 1 on
  std::int64_t row_stride;     // in values
  int part_rows, part_columns;
  bool swizzled;  // a row of a part is 128 bytes, and lies as SwizzledRows does; otherwise rows follow each other
};

// Images whose channels are of 1 or 2 bytes and lie side by side, and what is copied of them at a time: 128 or 64 bytes
// of `part_pixels` pixels, up to 256, which lie under one tap of neighboring positions of a window. Positions follow
// each other along a row of results, then along rows, then from image to image. A pixel's bytes lie as a row of
// SwizzledRows does.
struct ImageParts {
  const void* data;  // a multiple of 16 bytes, as are all steps
  int value_bytes;
  std::int64_t images, height, width, channels;    // from 1 on
  std::int64_t image_step, row_step, column_step;  // in values
  int first_row, first_column;                     // of the window at its first position: -128 to 0
  int behind_row, behind_column;                   // from the last pixel to the window's last position: -128 to 127
  int row_stride, column_stride;                   // from position to position: up to 8
  int part_pixels, part_bytes;
};

// The description. A kernel takes it as a parameter that is __grid_constant__.
struct TensorMap {
#if defined(__CUDACC__)
  CUtensorMap map;
#else
  MatrixParts parts;
  ImageParts images;
#endif
};

#if defined(__CUDACC__)
namespace detail {
// Returns the driver's function of this name, without a link to the driver's library.
inline void* driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  check_cuda(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result), name);
#else
  check_cuda(cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result), name);
#endif
  if (result != cudaDriverEntryPointSuccess) throw CudaError(std::string("the driver has no ") + name);
  return found;
}
inline void check_map(CUresult status, const char* name) {
  if (status != CUDA_SUCCESS)
    throw CudaError(std::string(name) + " failed with status " + std::to_string(static_cast<int>(status)));
}
}  // namespace detail
#endif

// Returns the description of a matrix; throws CudaError if the driver refuses it.
inline TensorMap tensor_map(const MatrixParts& of) {
  TensorMap result;
#if defined(__CUDACC__)
  const cuuint64_t extents[] = {static_cast<cuuint64_t>(of.columns), static_cast<cuuint64_t>(of.rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(of.row_stride * of.value_bytes)};
  const cuuint32_t part[] = {static_cast<cuuint32_t>(of.part_columns), static_cast<cuuint32_t>(of.part_rows)};
  const cuuint32_t steps[] = {1, 1};
  const CUtensorMapDataType type = of.value_bytes == 2   ? CU_TENSOR_MAP_DATA_TYPE_UINT16
                                   : of.value_bytes == 4 ? CU_TENSOR_MAP_DATA_TYPE_UINT32
                                                         : CU_TENSOR_MAP_DATA_TYPE_UINT64;
  constexpr const char* kName = "cuTensorMapEncodeTiled";
  static const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(detail::driver_function(kName));
  detail::check_map(
      encode(&result.map, type, 2, const_cast<void*>(of.data), extents, strides, part, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, of.swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
      kName);
#else
  result.parts = of;
#endif
  return result;
}

// Returns the description of images; throws CudaError if the driver refuses it.
inline TensorMap image_map(const ImageParts& of) {
  TensorMap result;
#if defined(__CUDACC__)
  const auto extent = [](std::int64_t value) { return static_cast<cuuint64_t>(value); };
  const cuuint64_t extents[] = {extent(of.channels), extent(of.width), extent(of.height), extent(of.images)};
  const cuuint64_t strides[] = {extent(of.value_bytes * of.column_step), extent(of.value_bytes * of.row_step),
                                extent(of.value_bytes * of.image_step)};
  const int first[] = {of.first_column, of.first_row}, behind[] = {of.behind_column, of.behind_row};
  const cuuint32_t steps[] = {1, static_cast<cuuint32_t>(of.column_stride), static_cast<cuuint32_t>(of.row_stride), 1};
  constexpr const char* kName = "cuTensorMapEncodeIm2col";
  static const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeIm2col)>(detail::driver_function(kName));
  detail::check_map(
      encode(&result.map, of.value_bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16, 4,
             const_cast<void*>(of.data), extents, strides, first, behind,
             static_cast<cuuint32_t>(of.part_bytes / of.value_bytes), static_cast<cuuint32_t>(of.part_pixels), steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE,
             of.part_bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
      kName);
#else
  result.images = of;
#endif
  return result;
}

// Has the map fetched, for which the first copy would wait.
__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
#if defined(__CUDACC__)
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map.map) : "memory");
#else
  (void)map;
#endif
}

// Copies the part that begins at this row and column to this place, a multiple of 128 or, swizzled, of 1024, and counts
// its bytes at this barrier, in every thread block of the cluster whose bit is set. What lies outside of the matrix is
// zeros.
__device__ __forceinline__ void tensor_copy(void* shared, const TensorMap& from, int row, int column, Barrier& barrier,
                                            unsigned ranks) {
#if defined(__CUDACC__)
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, "
      "%3}], [%4], %5;" ::"r"(shared_address(shared)),
      "l"(&from.map), "r"(column), "r"(row), "r"(shared_address(&barrier)), "h"(static_cast<std::uint16_t>(ranks))
      : "memory");
#else
  for (int rank = 0; ranks >> rank; ++rank)
    if (ranks >> rank & 1u)
      cuda_host::tensor_copy(cuda_host::shared_of(rank, shared), from.parts, row, column,
                             static_cast<std::uint64_t*>(cuda_host::shared_of(rank, &barrier.state)));
#endif
}
// In the calling thread block alone.
__device__ __forceinline__ void tensor_copy(void* shared, const TensorMap& from, int row, int column,
                                            Barrier& barrier) {
#if defined(__CUDACC__)
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared_address(shared)),
      "l"(&from.map), "r"(column), "r"(row), "r"(shared_address(&barrier))
      : "memory");
#else
  cuda_host::tensor_copy(shared, from.parts, row, column, &barrier.state);
#endif
}

// Where a window's positions begin: the pixel under its first tap, which may lie outside of the image.
struct ImagePlace {
  int image, row, column;
};

// Copies channels from `channel` on of the pixels that lie by tap_row and tap_column behind positions from `first` on,
// as tensor_copy() does. What lies outside of an image is zeros.
__device__ __forceinline__ void image_copy(void* shared, const TensorMap& from, const ImagePlace& first, int tap_row,
                                           int tap_column, int channel, Barrier& barrier) {
#if defined(__CUDACC__)
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
      "%5}], [%6], {%7, %8};" ::"r"(shared_address(shared)),
      "l"(&from.map), "r"(channel), "r"(first.column), "r"(first.row), "r"(first.image), "r"(shared_address(&barrier)),
      "h"(static_cast<std::uint16_t>(tap_column)), "h"(static_cast<std::uint16_t>(tap_row))
      : "memory");
#else
  const ImageParts& of = from.images;
  cuda_host::pixel_copy(shared, of.part_pixels, of.part_bytes, &barrier.state, [&, at = first]() mutable {
    const std::int64_t row = at.row + tap_row, column = at.column + tap_column;
    const bool inside = at.image >= 0 && at.image < of.images && row >= 0 && row < of.height && column >= 0 &&
                        column < of.width && channel < of.channels;
    const std::int64_t place = at.image * of.image_step + row * of.row_step + column * of.column_step + channel;
    if ((at.column += of.column_stride) > of.width - 1 + of.behind_column) {
      at.column = of.first_column;
      if ((at.row += of.row_stride) > of.height - 1 + of.behind_row) at.row = of.first_row, ++at.image;
    }
    return inside ? static_cast<const char*>(of.data) + of.value_bytes * place : nullptr;
  });
#endif
}

}  // namespace qcore::ptx
