// Compiled with the CUDA backend only.
#include "gru/gru_storage.h"
#include "recurrent/cuda/upload.h"

namespace qcore {

const RecurrentDeviceArrays& GruStorage::on_device(int index) const {
  return copies_.on(index, [&] {
    const GruFormats& f = parameters.formats;
    const LayerParts parts{parameters.input_size,
                           parameters.hidden_size,
                           3,
                           parameters.weight_bits,
                           parameters.w,
                           parameters.r,
                           wx,
                           rh,
                           {&biases[0], &biases[1], &biases[2], &biases[3]},
                           {{tables[0], f.z}, {tables[1], f.r}, {tables[2], f.g}}};
    return upload_layer(index, parts);
  });
}

}  // namespace qcore
