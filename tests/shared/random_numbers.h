#pragma once

#include <cmath>
#include <random>

namespace qcore {

// Gives the numbers of libstdc++'s std::normal_distribution<float> with every standard library, so that results for
// another system can be compared bit for bit: the polar method of Marsaglia, which makes two at a time.
class NormalNumbers {
 public:
  float operator()(std::mt19937& engine) {
    if (saved_) {
      saved_ = false;
      return second_;
    }
    float x, y, square;
    do {
      x = static_cast<float>(2.0f * uniform(engine) - 1.0);
      y = static_cast<float>(2.0f * uniform(engine) - 1.0);
      square = x * x + y * y;
    } while (square > 1.0f || square == 0.0f);
    const float factor = std::sqrt(-2 * std::log(square) / square);
    second_ = x * factor;
    saved_ = true;
    return y * factor;
  }

 private:
  // Below 1, though the conversion to float may round up to 2^32.
  static float uniform(std::mt19937& engine) {
    const float below_one = 1.0f - 0x1p-24f, number = static_cast<float>(engine()) / 4294967296.0f;
    return number < 1.0f ? number : below_one;
  }

  bool saved_ = false;
  float second_ = 0.0f;
};

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  float normal() { return NormalNumbers()(engine_); }
  int below(int bound) { return static_cast<int>(engine_() % static_cast<unsigned>(bound)); }

 private:
  std::mt19937 engine_;
};

}  // namespace qcore
