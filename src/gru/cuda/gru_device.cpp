// Compiled with the CUDA backend only.
#include "gru/cuda/gru_device.h"

#include <cstring>

#include "gru/gru_storage.h"
#include "runtime/cuda/cuda_device.h"

namespace qcore {
namespace {

// Arrays one after the other, each at a multiple of 256 bytes.
class Image {
 public:
  template <class T>
  std::size_t add(const std::vector<T>& values) {
    const std::size_t at = (bytes_.size() + 255) / 256 * 256;
    bytes_.resize(at + values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(bytes_.data() + at, values.data(), values.size() * sizeof(T));
    return at;
  }
  const std::vector<char>& bytes() const { return bytes_; }

 private:
  std::vector<char> bytes_;
};

std::vector<char> fragments(const std::vector<std::int16_t>& weights, std::int64_t size, std::int64_t features,
                            int planes) {
  const std::int64_t channels = gru_channels(size), row_bytes = gru_row_bytes(features);
  std::vector<char> bytes(static_cast<std::size_t>(3 * channels * planes * row_bytes));
  char* to = bytes.data();
  for (std::int64_t tile = 0; tile < 3 * channels / kGruRows; ++tile)
    for (int plane = 0; plane < planes; ++plane)
      for (std::int64_t step = 0; step < row_bytes / kGruStepK; ++step)
        for (int half = 0; half < 2; ++half)
          for (int lane = 0; lane < 32; ++lane)
            for (int byte = 0; byte < 16; ++byte, ++to) {
              const std::int64_t j = tile / 3 * kGruRows + lane / 4 + 8 * half;
              const std::int64_t k = kGruStepK * step + 16 * (lane % 4) + byte;
              if (j >= size || k >= features) continue;
              const int code = weights[static_cast<std::size_t>((tile % 3 * size + j) * features + k)];
              *to = static_cast<char>(planes == 2 && plane == 0 ? code >> 8 : code);
            }
  return bytes;
}

std::vector<std::uint8_t> small_entries(const std::vector<std::int32_t>& codes, int bytes) {
  std::vector<std::uint8_t> entries(codes.size() * static_cast<std::size_t>(bytes));
  for (std::size_t i = 0; i < codes.size(); ++i)
    std::memcpy(&entries[i * static_cast<std::size_t>(bytes)], &codes[i], static_cast<std::size_t>(bytes));
  return entries;
}

template <class T>
std::vector<T> padded(const std::vector<T>& values, std::int64_t size) {
  const std::int64_t channels = gru_channels(size);
  std::vector<T> all(static_cast<std::size_t>(static_cast<std::int64_t>(values.size()) / size * channels));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    all[static_cast<std::size_t>(at / size * channels + at % size)] = values[i];
  }
  return all;
}

}  // namespace

const GruDeviceArrays& GruStorage::on_device(int index) const {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Copy& copy : copies_)
    if (copy.device == index) return *copy.arrays;
  const std::int64_t size = parameters.hidden_size;
  const int planes = gru_planes(parameters.weight_bits);
  Image image;
  const std::size_t w = image.add(fragments(parameters.w, size, parameters.input_size, planes));
  const std::size_t r = image.add(fragments(parameters.r, size, size, planes));
  const std::size_t wx_offset = image.add(padded(wx.offsets, size)), rh_offset = image.add(padded(rh.offsets, size));
  const std::size_t wx_shift = image.add(padded(wx.shifts, size)), rh_shift = image.add(padded(rh.shifts, size));
  std::size_t bias[4] = {};
  for (int i = 0; i < 4; ++i) bias[i] = image.add(padded(biases[i], size));
  const std::size_t table[] = {image.add(tables[0]), image.add(tables[1]), image.add(tables[2])};
  const FixedFormat* gates[] = {&parameters.formats.z, &parameters.formats.r, &parameters.formats.g};
  const int gate_bytes[] = {gru_planes(gates[0]->bits), gru_planes(gates[1]->bits), gru_planes(gates[2]->bits)};
  std::size_t small[3] = {};
  for (int gate = 0; gate < 3; ++gate) small[gate] = image.add(small_entries(tables[gate], gate_bytes[gate]));
  auto memory = cuda_upload(index, image.bytes().data(), static_cast<std::int64_t>(image.bytes().size()));

  const char* at = static_cast<const char*>(memory.get());
  auto arrays = std::make_shared<GruDeviceArrays>();
  arrays->w = at + w;
  arrays->r = at + r;
  arrays->wx_offsets = reinterpret_cast<const std::int64_t*>(at + wx_offset);
  arrays->rh_offsets = reinterpret_cast<const std::int64_t*>(at + rh_offset);
  arrays->wx_shifts = reinterpret_cast<const std::int32_t*>(at + wx_shift);
  arrays->rh_shifts = reinterpret_cast<const std::int32_t*>(at + rh_shift);
  for (int i = 0; i < 4; ++i)
    arrays->biases[i] = biases[i].empty() ? nullptr : reinterpret_cast<const std::int64_t*>(at + bias[i]);
  for (int gate = 0; gate < 3; ++gate) arrays->tables[gate] = reinterpret_cast<const std::int32_t*>(at + table[gate]);
  for (int gate = 0; gate < 3; ++gate) {
    const std::int32_t sign = gates[gate]->is_signed ? 1 << (8 * gate_bytes[gate] - 1) : 0;
    arrays->small_tables[gate] = {at + small[gate], gate_bytes[gate], sign};
  }
  copies_.push_back({index, std::move(memory), arrays});
  return *copies_.back().arrays;
}

}  // namespace qcore
