#pragma once

#include <sstream>
#include <string>

#include "qcore/error.h"

// Validation that prints values. Usage:
//   QCORE_CHECK_VALUE(k == w.k, "linear: x has last dimension ", k, ", expected K = ", w.k);
namespace qcore {

template <class... Parts>
[[gnu::cold]] std::string message(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

}  // namespace qcore

#define QCORE_CHECK_VALUE(condition, ...)                                                            \
  do {                                                                                               \
    if (__builtin_expect(!(condition), 0)) throw ::qcore::ValueError(::qcore::message(__VA_ARGS__)); \
  } while (0)

#define QCORE_CHECK_TYPE(condition, ...)                                                            \
  do {                                                                                              \
    if (__builtin_expect(!(condition), 0)) throw ::qcore::TypeError(::qcore::message(__VA_ARGS__)); \
  } while (0)
