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

// The description. A kernel takes it as a parameter that is __grid_constant__.
struct TensorMap {
#if defined(__CUDACC__)
  CUtensorMap map;
#else
  MatrixParts parts;
#endif
};

#if defined(__CUDACC__)
namespace detail {
using EncodeTensorMap = decltype(&cuTensorMapEncodeTiled);

// Returns the driver's function, without a link to the driver's library.
inline EncodeTensorMap encode_tensor_map() {
  static const EncodeTensorMap function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result),
               "cuTensorMapEncodeTiled");
#else
    check_cuda(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result),
               "cuTensorMapEncodeTiled");
#endif
    if (result != cudaDriverEntryPointSuccess) throw CudaError("the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<EncodeTensorMap>(found);
  }();
  return function;
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
  const CUresult status = detail::encode_tensor_map()(
      &result.map, type, 2, const_cast<void*>(of.data), extents, strides, part, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      of.swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    throw CudaError("cuTensorMapEncodeTiled failed with status " + std::to_string(static_cast<int>(status)));
#else
  result.parts = of;
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

}  // namespace qcore::ptx
