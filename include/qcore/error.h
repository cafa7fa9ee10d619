#pragma once

#include <stdexcept>
#include <string>

#include "qcore/export.h"

namespace qcore {

// Base of everything qcore throws. The message names the operator, the argument, what was given
// and what was expected.
class QCORE_API Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message);
  ~Error() override;
};

// An argument has the right kind but an impossible value, shape or device.
class QCORE_API ValueError : public Error {
 public:
  explicit ValueError(const std::string& message);
  ~ValueError() override;
};

// An argument has a dtype or kind that the operator does not take.
class QCORE_API TypeError : public Error {
 public:
  explicit TypeError(const std::string& message);
  ~TypeError() override;
};

// A CUDA call or kernel launch failed, or CUDA was asked for where there is none.
class QCORE_API CudaError : public Error {
 public:
  explicit CudaError(const std::string& message);
  ~CudaError() override;
};

}  // namespace qcore
