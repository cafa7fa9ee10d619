// Compiled with the CUDA backend only.
#include "lstm/storage.h"
#include "recurrent/cuda/upload.h"

namespace qcore {

const RecurrentDeviceArrays& LstmStorage::on_device(int index) const {
  return copies_.on(index, [&] {
    using numerics::kLstmGates, numerics::kLstmPeepholes;
    const LstmParameters& p = parameters;
    const std::int64_t size = p.hidden_size;
    std::vector<std::int64_t> peepholes[kLstmPeepholes];
    for (int i = 0; cell.peepholes && i < kLstmPeepholes; ++i)
      peepholes[i].assign(p.peepholes.begin() + i * size, p.peepholes.begin() + (i + 1) * size);
    LayerParts parts{size,
                     p.weight_bits,
                     {{kLstmGates, size, p.input_size, p.w, wx}, {kLstmGates, size, p.state_size(), p.r, rh}},
                     {&peepholes[0], &peepholes[1], &peepholes[2]},
                     {&tables[0], &tables[1], &tables[2], &tables[3], &tables[4]}};
    if (p.projection_size) parts.products.push_back({1, p.projection_size, size, p.projection, projection});
    return upload_layer(index, parts);
  });
}

}  // namespace qcore
