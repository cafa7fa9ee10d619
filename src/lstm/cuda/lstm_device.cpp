// Compiled with the CUDA backend only.
#include "lstm/storage.h"
#include "recurrent/cuda/upload.h"

namespace qcore {

const RecurrentDeviceArrays& LstmStorage::on_device(int index) const {
  return copies_.on(index, [&] {
    const LstmFormats& f = parameters.formats;
    const LayerParts parts{
        parameters.input_size,
        parameters.hidden_size,
        numerics::kLstmGates,
        parameters.weight_bits,
        parameters.w,
        parameters.r,
        wx,
        rh,
        {},
        {{tables[0], f.i}, {tables[1], f.f}, {tables[2], f.g}, {tables[3], f.o}, {tables[4], f.c_tanh}}};
    return upload_layer(index, parts);
  });
}

}  // namespace qcore
