// A peer of `python -m benchmarks gpu linear --peers --cutlass FILE`: CUTLASS's int8 collectives for sm_90, results
// scaled per row of x and per row of the weight and stored as fp16. It is built by itself, with the headers of the
// package nvidia-cutlass (its folder cutlass_library/source) or of a checkout of CUTLASS 4:
//
//   nvcc -O3 -DNDEBUG -std=c++17 -gencode arch=compute_90a,code=sm_90a --expt-relaxed-constexpr -shared -Xcompiler -fPIC
//     -I CUTLASS/include -I CUTLASS/tools/util/include benchmarks/gpu/cutlass_int8.cu -o cutlass_int8.so
#include <cutlass/cutlass.h>
#include <cutlass/gemm/device/gemm_universal_adapter.h>

#include <cstdint>
#include <cute/tensor.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/epilogue/fusion/operations.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/util/packed_stride.hpp>

namespace {

namespace fusion = cutlass::epilogue::fusion;
using cute::_1;
using cute::_2;
using cute::Int;
using cute::Shape;

enum Status { done, unknown_tile, needs_workspace, not_implemented, not_initialized, not_launched };

template <class Tile, class Cluster, class Mainloop, class EpilogueSchedule>
struct Product {
  using Output = cutlass::half_t;
  using Row = cutlass::layout::RowMajor;
  static constexpr auto kRound = cutlass::FloatRoundStyle::round_to_nearest;
  template <class To>
  using Multiply = fusion::Sm90Compute<cutlass::multiplies, To, float, kRound>;
  using RowScales = fusion::Sm90ColBroadcast<0, Tile, float, float, cute::Stride<_1, Int<0>, Int<0>>>;
  using ColumnScales = fusion::Sm90RowBroadcast<0, Tile, float, float, cute::Stride<Int<0>, _1, Int<0>>>;
  using Scaled = fusion::Sm90EVT<Multiply<float>, ColumnScales, fusion::Sm90AccFetch>;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, std::int32_t, float, void, Row, 8, Output, Row, 8,
      EpilogueSchedule, fusion::Sm90EVT<Multiply<Output>, RowScales, Scaled>>::CollectiveOp;
  using Main = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, std::int8_t, Row, 16, std::int8_t,
      cutlass::layout::ColumnMajor, 16, std::int32_t, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      Mainloop>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Main, Epilogue,
                                                      cutlass::gemm::PersistentScheduler>;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

  static Status run(const std::int8_t* x, const std::int8_t* w, void* y, const float* row_scales,
                    const float* column_scales, int m, int n, int k, int multiprocessors, cudaStream_t stream) {
    const auto of_x = cutlass::make_cute_packed_stride(typename Kernel::StrideA{}, {m, k, 1});
    const auto of_w = cutlass::make_cute_packed_stride(typename Kernel::StrideB{}, {n, k, 1});
    const auto of_y = cutlass::make_cute_packed_stride(typename Kernel::StrideD{}, {m, n, 1});
    typename Gemm::Arguments arguments{cutlass::gemm::GemmUniversalMode::kGemm,
                                       {m, n, k, 1},
                                       {x, of_x, w, of_w},
                                       {{}, nullptr, of_y, static_cast<Output*>(y), of_y}};
    arguments.epilogue.thread = {{row_scales, 0.0f, {}}, {{column_scales, 0.0f, {}}, {}, {}}, {}};
    arguments.hw_info.sm_count = multiprocessors;
    Gemm gemm;
    if (Gemm::get_workspace_size(arguments) != 0) return needs_workspace;
    if (gemm.can_implement(arguments) != cutlass::Status::kSuccess) return not_implemented;
    if (gemm.initialize(arguments, nullptr, stream) != cutlass::Status::kSuccess) return not_initialized;
    return gemm.run(stream) == cutlass::Status::kSuccess ? done : not_launched;
  }
};

using Cooperative = cutlass::gemm::KernelTmaWarpSpecializedCooperative;
using Pingpong = cutlass::gemm::KernelTmaWarpSpecializedPingpong;
using StoredCooperatively = cutlass::epilogue::TmaWarpSpecializedCooperative;
using StoredAlone = cutlass::epilogue::TmaWarpSpecialized;
template <int kRows, int kColumns, int kDepth>
using Tile = Shape<Int<kRows>, Int<kColumns>, Int<kDepth>>;

}  // namespace

// y [m, n] fp16 = x [m, k] w [n, k]^T, scaled. Returns 0, or a Status that says what failed.
extern "C" int cutlass_int8(int tile, const void* x, const void* w, void* y, const void* row_scales,
                            const void* column_scales, int m, int n, int k, int multiprocessors, void* stream) {
  const auto run = [&](auto product) {
    return decltype(product)::run(static_cast<const std::int8_t*>(x), static_cast<const std::int8_t*>(w), y,
                                  static_cast<const float*>(row_scales), static_cast<const float*>(column_scales), m, n,
                                  k, multiprocessors, static_cast<cudaStream_t>(stream));
  };
  switch (tile) {
    case 0:
      return run(Product<Tile<128, 256, 128>, Shape<_2, _1, _1>, Cooperative, StoredCooperatively>{});
    case 1:
      return run(Product<Tile<256, 128, 128>, Shape<_1, _2, _1>, Cooperative, StoredCooperatively>{});
    case 2:
      return run(Product<Tile<128, 128, 128>, Shape<_2, _1, _1>, Pingpong, StoredAlone>{});
    case 3:
      return run(Product<Tile<64, 256, 128>, Shape<_1, _1, _1>, Pingpong, StoredAlone>{});
    case 4:
      return run(Product<Tile<64, 64, 256>, Shape<_1, _1, _1>, Pingpong, StoredAlone>{});
    case 5:
      return run(Product<Tile<64, 128, 256>, Shape<_1, _1, _1>, Pingpong, StoredAlone>{});
  }
  return unknown_tile;
}
