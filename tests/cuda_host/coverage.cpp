#include <gtest/gtest.h>

#include <cstdio>

#include "cuda_runtime.h"

// Every kernel in src/ with the number of its template instances. A kernel that is added belongs here.
namespace {

struct Listed {
  const char* name;
  std::size_t instances;
};
constexpr Listed kKernels[] = {
    {"awq_arithmetic", 1},
    {"awq_columns", 1},
    {"awq_pack_codes", 1},
    {"awq_pack_parameters", 1},
    {"awq_rows", 1},
    {"conv2d_depthwise", 12},
    {"conv2d_direct_float", 1},
    {"conv2d_direct_integer", 1},
    {"decoder_attention", 48},
    {"decoder_attention_merge", 1},
    {"decoder_cap", 1},
    {"decoder_gate", 16},
    {"decoder_heads", 12},
    {"decoder_norm", 8},
    {"dequantize_accumulate", 1},
    {"embedding", 1},
    {"float_mma", 58},
    {"fused_integer", 28},
    {"gather_rows", 1},
    {"gemv_float", 12},
    {"gemv_int8", 6},
    {"gemv_integer", 4},
    {"int8_mma", 42},
    {"gru_codes", 1},
    {"gru_input", 8},
    {"gru_long_input", 4},
    {"gru_pack", 1},
    {"gru_persistent", 12},
    {"gru_step", 24},
    {"implicit_gemm", 16},
    {"implicit_gemm_float", 32},
    {"quantize_activations", 2},
    {"quantize_aligned", 2},
    {"quantize_pixels", 1},
    {"simt_float", 2},
    {"simt_integer", 2},
    {"split_rows", 1},
    {"static_depthwise", 4},
    {"static_direct", 1},
    {"static_gemm", 8},
    {"static_pack", 1},
    {"unpack_weight", 1},
    {"weight_sums", 1},
    {"wgmma_integer", 18},
    {"direct_map", 1},
    {"lut", 21},
    {"lut_strided", 7},
    {"softmax", 8},
    {"rms_norm", 8},
};

class Coverage : public testing::Environment {
 public:
  void TearDown() override {
    const bool all_tests = testing::GTEST_FLAG(filter) == "*";
    for (const auto& [name, instances] : cuda_host::launches()) {
      int runs = 0;
      for (const auto& [kernel, count] : instances) runs += count;
      std::printf("cuda_host: %-24s %zu instances, %d launches\n", name.c_str(), instances.size(), runs);
      EXPECT_TRUE(name == "self_test" || listed(name)) << name << " is not listed in coverage.cpp";
    }
    for (const Listed& kernel : kKernels) {
      const auto found = cuda_host::launches().find(kernel.name);
      const std::size_t ran = found == cuda_host::launches().end() ? 0 : found->second.size();
      EXPECT_TRUE(!all_tests || ran == kernel.instances)
          << kernel.name << ": " << ran << " instances ran, expected " << kernel.instances;
    }
  }

 private:
  static bool listed(const std::string& name) {
    for (const Listed& kernel : kKernels)
      if (name == kernel.name) return true;
    return false;
  }
};

const auto* const coverage = testing::AddGlobalTestEnvironment(new Coverage);

}  // namespace
