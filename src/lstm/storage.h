#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "numerics/recurrent/lstm_cell.h"
#include "qcore/recurrent/lstm.h"
#include "recurrent/code_access.h"
#include "recurrent/device_copies.h"
#include "recurrent/parameters.h"

namespace qcore {

struct LstmPacked;  // cpu/packed.h

constexpr int kLstmTables = numerics::kLstmGates + 1;  // i, f, g, o, and tanh of c

// The largest magnitude of a peephole's weights.
inline std::int64_t peephole_reach(const LstmParameters& p, int peephole) {
  std::int64_t largest = 0;
  for (std::int64_t j = 0; j < p.hidden_size; ++j)
    largest = std::max<std::int64_t>(largest, std::abs(std::int64_t{p.peepholes[peephole * p.hidden_size + j]}));
  return largest;
}

// A layer as kernels want it. Arrays over channels are [4H], gate order i, f, g, o.
struct LstmStorage {
  LstmParameters parameters;
  CodeFormat x_format, h_format, c_format;
  numerics::LstmCell cell;
  std::vector<std::int32_t> tables[kLstmTables];
  TableKnots knots[kLstmTables];
  // Offsets are -zero_point * sum of the row's weights, wx's with the bias.
  PreparedProduct wx, rh, projection;
  std::shared_ptr<const LstmPacked> packed;  // for the vector kernels; null if they can't have it

  // All of it in one piece of the device's memory, made at its first use.
  const RecurrentDeviceArrays& on_device(int index) const;

 private:
  DeviceCopies copies_;
};

}  // namespace qcore
