#pragma once

#include <memory>
#include <string>
#include <vector>

#include "qcore/decoder.h"

namespace qcore {

// Checked weights. Floating-point arrays are contiguous fp32 on the decoder's device, rank 0 for none; the offset of
// the norms is in their weights.
struct DecoderStorage {
  struct Layer {
    std::string name;  // for messages: "decoder: model.layers.3"
    TensorView input_norm, post_attention_norm, mlp_norm, post_mlp_norm, q_norm, k_norm;
    std::vector<QuantizedTensor> qkv;
    QuantizedTensor out;
    std::vector<QuantizedTensor> gate_up;
    QuantizedTensor down;
    TensorView qkv_bias, out_bias, gate_up_bias, down_bias;
    std::int64_t window;
    int rotary;
  };

  DecoderOptions options;
  Device device;
  std::vector<Layer> layers;
  std::vector<RotaryTable> rotary;
  TensorView final_norm, head_bias;
  std::optional<QuantizedTensor> head;
  std::vector<std::shared_ptr<void>> memory;  // of the floating-point arrays
  std::int64_t nbytes = 0;

  std::int64_t q_size() const { return options.heads * options.head_size; }
  std::int64_t kv_size() const { return options.kv_heads * options.head_size; }
  std::int64_t qkv_size() const { return q_size() + 2 * kv_size(); }
};

}  // namespace qcore
