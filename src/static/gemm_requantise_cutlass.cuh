#pragma once

#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/kernel/default_gemm_universal_with_visitor.h>

#include <cutlass/epilogue/threadblock/fusion/visitors.hpp>
#include <type_traits>

#include "cuda/check_cutlass.cuh"
#include "runtime/memory.h"
#include "static/gemm_requantise.cuh"

// A GEMM of bytes whose epilogue is one of CUTLASS's visitors: it gets the sums of four neighbouring channels of a
// result, and stores their codes.
namespace qcore::static_gemm {

template <class ThreadMap>
struct StoreCodes {
  struct SharedStorage {};
  struct Arguments {
    int m;
    std::int64_t n;
    Requantisation requantisation;
    ResultPixels results;
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
  CUTLASS_HOST_DEVICE StoreCodes() {}
  CUTLASS_HOST_DEVICE StoreCodes(const Params& given, const SharedStorage&) : params(&given) {}

  template <class Coordinates>
  struct Callbacks : cutlass::epilogue::threadblock::EmptyCallbacks {
    static_assert(ThreadMap::Iterations::kColumn == 1, "a thread's results are of the same channels");

    CUTLASS_DEVICE Callbacks(Coordinates&& coordinates_, const Params& a_)
        : coordinates(cute::forward<Coordinates>(coordinates_)),
          a(a_),
          channels(a_.requantisation, cute::get<1>(coordinates(0, 0, 0, 0)), a_.n) {}

    template <class Accumulator, int kCount>
    CUTLASS_DEVICE void visit(int step, int row, int column, int, const cutlass::Array<Accumulator, kCount>& sums) {
      static_assert(kCount == RequantisedChannels::kMost, "the channels that are stored together");
      const auto place = coordinates(0, column, row, step);
      const int result = cute::get<0>(place), channel = cute::get<1>(place);
      if (result >= a.m || channel >= a.n) return;
      channels.store(a.results.of(result) + channel * a.results.y.channel, a.results.y.channel, channels.codes(sums));
    }

    Coordinates coordinates;
    const Params& a;
    RequantisedChannels channels;
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread, ProblemShape shape) {
    auto coordinates = cute::group_modes<3, 6>(ThreadMap::partition(cute::make_identity_tensor(shape), thread, tile));
    return Callbacks<decltype(coordinates)>(cute::move(coordinates), *params);
  }

  const Params* params;
};

template <class Element, class Architecture, class Tile, class WarpTile, class Instruction, int kStages>
void run_requantising(const char* name, const RequantisingGemm& gemm, cudaStream_t stream) {
  using ThreadMap = cutlass::epilogue::threadblock::OutputTileThreadLayout<Tile, WarpTile, std::int8_t,
                                                                           RequantisedChannels::kMost, 1>;
  using Kernel = typename cutlass::gemm::kernel::DefaultGemmWithVisitor<
      Element, cutlass::layout::RowMajor, cutlass::ComplexTransform::kNone, 16, std::int8_t,
      cutlass::layout::ColumnMajor, cutlass::ComplexTransform::kNone, 16, std::int8_t, cutlass::layout::RowMajor,
      RequantisedChannels::kMost, std::int32_t, std::int32_t, cutlass::arch::OpClassTensorOp, Architecture, Tile,
      WarpTile, Instruction, StoreCodes<ThreadMap>, cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<>,
      kStages, cutlass::arch::OpMultiplyAddSaturate, 1>::GemmKernel;
  static_assert(std::is_same_v<typename ThreadMap::Base, typename Kernel::Epilogue::OutputTileIterator::ThreadMap>,
                "sums reach the threads that know their places");
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
  const typename Gemm::Arguments arguments(cutlass::gemm::GemmUniversalMode::kGemm, {gemm.m, gemm.columns, gemm.k}, 1,
                                           {gemm.m, gemm.n, gemm.requantisation, gemm.results}, gemm.a, gemm.b, nullptr,
                                           nullptr, 0, 0, 0, 0, gemm.lda, gemm.ldb, 0, 0);
  Gemm op;
  check_cutlass(name, gemm.m, gemm.columns, gemm.k, [&] {
    const cutlass::Status status = op.initialize(arguments, nullptr, stream);
    return status == cutlass::Status::kSuccess ? op.run(stream) : status;
  }());
}

// Small tiles while large ones are too few for a device.
template <class Element, class Architecture, class Instruction, int kStages>
void run_tiles(const char* name, const RequantisingGemm& gemm, cudaStream_t stream) {
  using cutlass::gemm::GemmShape;
  if (ceil_div(gemm.m, 128) * ceil_div(gemm.n, 128) >= gemm.enough_tiles)
    run_requantising<Element, Architecture, GemmShape<128, 128, 64>, GemmShape<64, 64, 64>, Instruction, kStages>(
        name, gemm, stream);
  else
    run_requantising<Element, Architecture, GemmShape<64, 64, 64>, GemmShape<32, 32, 64>, Instruction, kStages>(
        name, gemm, stream);
}

template <class Architecture, class Instruction, int kStages>
void run_requantising(const char* name, const RequantisingGemm& gemm, cudaStream_t stream) {
  if (gemm.a_signed)
    run_tiles<std::int8_t, Architecture, Instruction, kStages>(name, gemm, stream);
  else
    run_tiles<std::uint8_t, Architecture, Instruction, kStages>(name, gemm, stream);
}

}  // namespace qcore::static_gemm
