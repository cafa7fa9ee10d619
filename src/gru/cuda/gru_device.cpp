// Compiled with the CUDA backend only.
#include "gru/gru_storage.h"
#include "recurrent/cuda/upload.h"

namespace qcore {

const RecurrentDeviceArrays& GruStorage::on_device(int index) const {
  return copies_.on(index, [&] {
    const GruParameters& p = parameters;
    const std::int64_t size = p.hidden_size;
    LayerParts parts{size,
                     p.weight_bits,
                     {{3, size, p.input_size, p.w, wx}, {p.linear_before_reset ? 3 : 2, size, size, p.r, rh}},
                     {&biases[0], &biases[1], &biases[2], &biases[3]},
                     {&tables[0], &tables[1], &tables[2]}};
    if (!p.linear_before_reset) parts.products.push_back({1, size, size, reset_weights, reset});
    return upload_layer(index, parts);
  });
}

}  // namespace qcore
