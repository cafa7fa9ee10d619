#include "linear/gemm_int8_cutlass.cuh"
#include "numerics/block_product.h"

// These need what gemm_int8_cutlass.cuh includes.
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/kernel/default_gemm_universal_with_visitor.h>

#include <cutlass/epilogue/threadblock/fusion/visitors.hpp>

// The epilogue is a tree of CUTLASS's visitors: y = add_product(y, accumulator, row scale, column scale).
namespace qcore {
namespace {

namespace fusion = cutlass::epilogue::threadblock;
using cute::_;
using cute::_0;
using cute::_1;
using cutlass::gemm::GemmShape;
using Tile = GemmShape<128, 128, 64>;
using WarpTile = GemmShape<64, 64, 64>;
using Instruction = GemmShape<16, 8, 32>;
constexpr int kElements = 4;  // of y at once
using ThreadMap = fusion::OutputTileThreadLayout<Tile, WarpTile, float, kElements, 1>;

template <class Fragment>
struct AddProduct;
template <int kCount>
struct AddProduct<cutlass::Array<float, kCount>> {
  using Fragment = cutlass::Array<float, kCount>;
  CUTLASS_DEVICE Fragment operator()(const Fragment& product, const Fragment& row_scale, const Fragment& column_scale,
                                     const Fragment& y) const {
    Fragment sum;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount; ++i)
      sum[i] = numerics::fma_once(product[i], row_scale[i] * column_scale[i], y[i]);  // numerics::add_product()
    return sum;
  }
};

// Scales of one block as a packed weight has them: 16 columns, and the next 16 `panel_stride` behind them.
struct PanelBroadcast {
  struct SharedStorage {};
  struct Arguments {
    const float* scales = nullptr;
    std::int64_t panel_stride = 0;
  };
  using Params = Arguments;

  template <class ProblemShape>
  static constexpr Params to_underlying_arguments(const ProblemShape&, const Arguments& arguments, void*) {
    return arguments;
  }
  template <class ProblemShape>
  static std::size_t get_workspace_size(const ProblemShape&, const Arguments&) {
    return 0;
  }
  CUTLASS_HOST_DEVICE PanelBroadcast() {}
  CUTLASS_HOST_DEVICE PanelBroadcast(const Params& given, const SharedStorage&) : params(&given) {}

  template <class Coordinates>
  struct Callbacks : fusion::EmptyCallbacks {
    CUTLASS_DEVICE Callbacks(Coordinates&& coordinates_, int n_, const Params* params_)
        : coordinates(cute::forward<Coordinates>(coordinates_)), n(n_), params(params_) {}

    template <class Accumulator, int kCount>
    CUTLASS_DEVICE auto visit(int step, int row, int column, int, const cutlass::Array<Accumulator, kCount>&) {
      static_assert(kCount == kElements, "four columns of a panel");
      cutlass::Array<float, kCount> scales;
      scales.clear();
      const int first = cute::get<1>(coordinates(0, column, row, step));
      if (first < n)
        cutlass::arch::global_load<cutlass::Array<float, kCount>, sizeof(scales)>(
            scales, params->scales + first / 16 * params->panel_stride + first % 16, true);
      return scales;
    }

    Coordinates coordinates;
    int n;
    const Params* params;
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread, ProblemShape shape) {
    auto coordinates = cute::group_modes<3, 6>(ThreadMap::partition(cute::make_identity_tensor(shape), thread, tile));
    return Callbacks<decltype(coordinates)>(cute::move(coordinates), cute::get<1>(shape), params);
  }

  const Params* params;
};

using Stride = cute::Stride<std::int64_t, _1, std::int64_t>;
using RowScales = fusion::VisitorColBroadcast<ThreadMap, float, cute::Stride<_1, _0, std::int32_t>>;
using Compute = fusion::VisitorCompute<AddProduct, float, float, cutlass::FloatRoundStyle::round_to_nearest>;
using Store = fusion::VisitorAuxStore<ThreadMap, float, cutlass::FloatRoundStyle::round_to_nearest, Stride>;

template <class Before>
using Visitors =
    fusion::Sm80EVT<Store, fusion::Sm80EVT<Compute, fusion::VisitorAccFetch, RowScales, PanelBroadcast, Before>>;
using Nothing = Visitors<fusion::VisitorScalarBroadcast<float>>;
using Totals = Visitors<fusion::VisitorAuxLoad<ThreadMap, float, Stride>>;

template <class Epilogue>
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<typename cutlass::gemm::kernel::DefaultGemmWithVisitor<
    std::int8_t, cutlass::layout::RowMajor, cutlass::ComplexTransform::kNone, 16, std::int8_t,
    cutlass::layout::ColumnMajor, cutlass::ComplexTransform::kNone, 16, float, cutlass::layout::RowMajor, kElements,
    std::int32_t, float, cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80, Tile, WarpTile, Instruction, Epilogue,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<>, 3, cutlass::arch::OpMultiplyAddSaturate,
    1>::GemmKernel>;

template <class Epilogue, class Before>
void run(const Int8GemmAccumulate& gemm, const Before& before, cudaStream_t stream) {
  const Stride stride{gemm.ldy, _1{}, std::int64_t{0}};
  const typename Epilogue::Arguments epilogue{
      {{}, {gemm.row_scales, 0.0f, {_1{}, _0{}, 0}}, {gemm.column_scales, gemm.panel_stride}, before, {}},
      {gemm.y, stride}};
  const typename Gemm<Epilogue>::Arguments arguments(cutlass::gemm::GemmUniversalMode::kGemm, {gemm.m, gemm.n, gemm.k},
                                                     1, epilogue, gemm.a, gemm.b, nullptr, nullptr, 0, 0, 0, 0,
                                                     gemm.lda, gemm.ldb, 0, 0);
  Gemm<Epilogue> op;
  check_cutlass("gemm_int8_accumulate_sm80", gemm.m, gemm.n, gemm.k, [&] {
    cutlass::Status status = op.initialize(arguments, nullptr, stream);
    return status == cutlass::Status::kSuccess ? op.run(stream) : status;
  }());
}

}  // namespace

void gemm_int8_accumulate_sm80(const Int8GemmAccumulate& gemm, cudaStream_t stream) {
  if (gemm.first)
    run<Nothing>(gemm, fusion::VisitorScalarBroadcast<float>::Arguments{}, stream);
  else
    run<Totals>(gemm,
                fusion::VisitorAuxLoad<ThreadMap, float, Stride>::Arguments{gemm.y, 0.0f,
                                                                            Stride{gemm.ldy, _1{}, std::int64_t{0}}},
                stream);
}

}  // namespace qcore
