#pragma once

#include <random>

namespace qcore {

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  float normal() { return std::normal_distribution<float>()(engine_); }
  int below(int bound) { return static_cast<int>(engine_() % static_cast<unsigned>(bound)); }

 private:
  std::mt19937 engine_;
};

}  // namespace qcore
