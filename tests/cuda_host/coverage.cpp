#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <string>

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
    {"conv2d_simt_float", 2},
    {"conv2d_simt_integer", 2},
    {"decoder_attention", 48},
    {"decoder_attention_merge", 1},
    {"decoder_cap", 1},
    {"decoder_gate", 16},
    {"decoder_gate_quantize", 24},
    {"decoder_heads", 12},
    {"decoder_norm", 8},
    {"decoder_norm_quantize", 6},
    {"dequantize_accumulate", 1},
    {"embedding", 1},
    {"embedding_encoded", 1},
    {"expand_codes", 7},
    {"expand_parameters", 1},
    {"sm80_float_gemv", 8},
    {"sm80_float_mma", 114},
    {"sm80_int8_mma", 44},
    {"sm80_int8_mma16", 14},
    {"gather_rows", 1},
    {"gemv_encoded", 14},
    {"gemv_float", 12},
    {"gemv_int8", 8},
    {"gemv_int8_ahead", 6},
    {"gemv_integer", 4},
    {"grouped_gemv", 8},
    {"grouped_int8_mma", 2},
    {"sm90_int8_mma", 101},
    {"gru_cell", 1},
    {"gru_persistent", 12},
    {"gru_row", 7},
    {"gru_single_step", 8},
    {"gru_step", 20},
    {"lstm_cell", 1},
    {"lstm_persistent", 4},
    {"lstm_projection", 1},
    {"lstm_row", 2},
    {"lstm_single_step", 4},
    {"lstm_step", 12},
    {"place_rows", 1},
    {"quantize_activations", 2},
    {"quantize_aligned", 2},
    {"quantize_columns", 1},
    {"quantize_dense", 2},
    {"quantize_long", 6},
    {"recurrent_codes", 1},
    {"recurrent_input", 8},
    {"recurrent_long_input", 4},
    {"recurrent_pack", 1},
    {"simt_float", 2},
    {"simt_integer", 2},
    {"row_sums", 1},
    {"sm90_float_wgmma", 60},
    {"split_rows", 1},
    {"static_depthwise", 4},
    {"static_simt", 1},
    {"static_gemm", 8},
    {"static_pack", 1},
    {"static_wgmma", 4},
    {"unpack_weight", 1},
    {"weight_sums", 1},
    {"sm90_int8_wgmma", 46},
    {"lut16", 1},
    {"lut", 21},
    {"lut_strided", 7},
    {"softmax", 8},
    {"rms_norm", 8},
};

bool is_listed(const std::string& name) {
  for (const Listed& kernel : kKernels)
    if (name == kernel.name) return true;
  return false;
}

// The instances that ran, by name, as distances in bytes from a place in this program: the same in each of its
// processes.
using Instances = std::map<std::string, std::set<std::intptr_t>>;

Instances instances_that_ran() {
  Instances found;
  for (const auto& [name, instances] : cuda_host::launches())
    for (const auto& [kernel, count] : instances)
      found[name].insert(reinterpret_cast<std::intptr_t>(kernel) - reinterpret_cast<std::intptr_t>(&is_listed));
  return found;
}

void expect_all(const Instances& found) {
  for (const Listed& kernel : kKernels) {
    const auto entry = found.find(kernel.name);
    const std::size_t ran = entry == found.end() ? 0 : entry->second.size();
    EXPECT_EQ(ran, kernel.instances) << "instances of " << kernel.name;
  }
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// The folder in which processes that share the tests tell each other what ran, and its file for one of them.
const std::string kFolder = environment("QCORE_CUDA_HOST_FOLDER");
std::string file_of_shard(const std::string& index) { return kFolder + "/shard" + index; }

class Coverage : public testing::Environment {
 public:
  void TearDown() override {
    for (const auto& [name, instances] : cuda_host::launches()) {
      int runs = 0;
      for (const auto& [kernel, count] : instances) runs += count;
      std::printf("cuda_host: %-24s %zu instances, %d launches\n", name.c_str(), instances.size(), runs);
      EXPECT_TRUE(name == "self_test" || is_listed(name)) << name << " is not listed in coverage.cpp";
    }
    const std::string shard = environment("GTEST_SHARD_INDEX");
    if (shard.empty()) {
      if (testing::GTEST_FLAG(filter) == "*") expect_all(instances_that_ran());
      return;
    }
    if (kFolder.empty()) return;
    std::ofstream file(file_of_shard(shard));
    for (const auto& [name, instances] : instances_that_ran())
      for (const std::intptr_t instance : instances) file << name << ' ' << instance << '\n';
    EXPECT_TRUE(file.flush().good()) << file_of_shard(shard) << " cannot be written";
  }
};

const auto* const coverage = testing::AddGlobalTestEnvironment(new Coverage);

// Runs alone, after the processes that shared the tests.
TEST(Coverage, DISABLED_OfAllShards) {
  Instances found;
  for (int shard = 0; shard < QCORE_CUDA_HOST_SHARDS; ++shard) {
    std::ifstream file(file_of_shard(std::to_string(shard)));
    ASSERT_TRUE(file.good()) << file_of_shard(std::to_string(shard)) << " cannot be read";
    std::string name;
    for (std::intptr_t instance; file >> name >> instance;) found[name].insert(instance);
  }
  expect_all(found);
}

}  // namespace
