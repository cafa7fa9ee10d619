#pragma once

#include "random_gru.h"
#include "support.h"

namespace qcore::test {

inline DType code_dtype(const FixedFormat& format) { return format.bits <= 8 ? DType::i8 : DType::i16; }

// Codes of a format in its dtype, and room behind them that must stay.
class Codes {
 public:
  Codes(std::int64_t count, const FixedFormat& format)
      : dtype_(code_dtype(format)), bytes_(count * item_size(dtype_)) {}

  void fill(Random& random, const FixedFormat& format) {
    for (std::int64_t i = 0; i < bytes_.size() / item_size(dtype_); ++i) {
      const int code = between(random, format.lowest(), format.highest());
      if (dtype_ == DType::i8)
        bytes_[i] = static_cast<unsigned char>(code);
      else
        reinterpret_cast<std::int16_t*>(bytes_.data())[i] = static_cast<std::int16_t>(code);
    }
  }
  TensorView view(std::initializer_list<std::int64_t> shape) {
    return TensorView(static_cast<void*>(bytes_.data()), dtype_, shape);
  }
  bool operator==(Codes& other) {
    return std::memcmp(bytes_.data(), other.bytes_.data(), bytes_.size()) == 0 && bytes_.guards_intact();
  }
  std::vector<unsigned char> bytes() { return {bytes_.data(), bytes_.data() + bytes_.size()}; }

 private:
  DType dtype_;
  Guarded<unsigned char> bytes_;
};

}  // namespace qcore::test
