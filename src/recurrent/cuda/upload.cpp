// Compiled with the CUDA backend only.
#include "recurrent/cuda/upload.h"

#include <cstring>

#include "recurrent/cuda/tables/line_table.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/memory.h"

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

// Zeros follow up to a multiple of kInputTiles tiles.
std::vector<char> fragments(const DeviceProductParts& product, int planes) {
  const std::int64_t size = product.outputs, features = product.features, row_bytes = row_bytes_of(features);
  const int gates = product.gates;
  const std::int64_t tiles = gates * padded_channels(size) / kTileRows;
  std::vector<char> bytes(static_cast<std::size_t>(round_up(tiles, kInputTiles) * kTileRows * planes * row_bytes));
  char* to = bytes.data();
  for (std::int64_t tile = 0; tile < tiles; ++tile)
    for (int plane = 0; plane < planes; ++plane)
      for (std::int64_t step = 0; step < row_bytes / kStepK; ++step)
        for (int half = 0; half < 2; ++half)
          for (int lane = 0; lane < 32; ++lane)
            for (int byte = 0; byte < 16; ++byte, ++to) {
              const std::int64_t j = tile / gates * kTileRows + lane / 4 + 8 * half;
              const std::int64_t k = kStepK * step + 16 * (lane % 4) + byte;
              if (j >= size || k >= features) continue;
              const int code = product.weights[static_cast<std::size_t>((tile % gates * size + j) * features + k)];
              *to = static_cast<char>(planes == 2 && plane == 0 ? code >> 8 : code);
            }
  return bytes;
}

template <class T>
std::vector<T> padded(const std::vector<T>& values, std::int64_t size) {
  const std::int64_t channels = padded_channels(size);
  std::vector<T> all(static_cast<std::size_t>(static_cast<std::int64_t>(values.size()) / size * channels));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    all[static_cast<std::size_t>(at / size * channels + at % size)] = values[i];
  }
  return all;
}

}  // namespace

DeviceCopy upload_layer(int index, const LayerParts& parts) {
  struct Places {
    std::size_t weights, offsets, shifts;
  };
  const std::int64_t size = parts.hidden_size;
  Image image;
  std::vector<Places> product;
  for (const DeviceProductParts& each : parts.products) {
    const std::size_t weights = image.add(fragments(each, planes_of(parts.weight_bits)));
    const std::size_t offsets = image.add(padded(each.prepared.offsets, each.outputs));
    product.push_back({weights, offsets, image.add(padded(each.prepared.shifts, each.outputs))});
  }
  std::vector<std::size_t> vector, table, lines;
  std::vector<LineTable> line_tables;
  for (const auto* values : parts.vectors) vector.push_back(image.add(padded(*values, size)));
  for (const auto* codes : parts.tables) {
    table.push_back(image.add(*codes));
    line_tables.push_back(make_lines(*codes));
    lines.push_back(image.add(line_tables.back().lines));
  }
  auto memory = cuda_upload(index, image.bytes().data(), static_cast<std::int64_t>(image.bytes().size()));

  const char* at = static_cast<const char*>(memory.get());
  auto arrays = std::make_shared<RecurrentDeviceArrays>();
  DeviceProduct* const products[] = {&arrays->w, &arrays->r, &arrays->second};
  for (std::size_t i = 0; i < product.size(); ++i)
    *products[i] = {at + product[i].weights, reinterpret_cast<const std::int64_t*>(at + product[i].offsets),
                    reinterpret_cast<const std::int32_t*>(at + product[i].shifts)};
  for (std::size_t i = 0; i < vector.size(); ++i)
    arrays->vectors[i] = parts.vectors[i]->empty() ? nullptr : reinterpret_cast<const std::int64_t*>(at + vector[i]);
  for (std::size_t i = 0; i < table.size(); ++i) {
    arrays->tables[i] = reinterpret_cast<const std::int32_t*>(at + table[i]);
    arrays->lines[i] = {reinterpret_cast<const TableLine*>(at + lines[i]),
                        static_cast<int>(line_tables[i].lines.size()), line_tables[i].shift};
  }
  return {std::move(memory), std::move(arrays)};
}

}  // namespace qcore
