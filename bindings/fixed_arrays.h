#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>
#include <vector>

#include "qcore/error.h"
#include "qcore/recurrent/fixed_format.h"

// Arguments that the bindings of recurrent layers share.
namespace qcore::bindings {

using Formats = nanobind::ndarray<const std::int32_t, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;
template <class Integer>
using Integers = nanobind::ndarray<const Integer, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

constexpr const char* kCodesOrNumbers = "int8, int16, float32, float16 or bfloat16";

template <class Integer>
std::vector<Integer> vector_of(const Integers<Integer>& values) {
  return {values.data(), values.data() + values.size()};
}

// Reads a row of bits, signedness, exponent and zero point for each of `count` formats.
inline void read_formats(const char* op, const Formats& rows, FixedFormat* const* formats, std::size_t count) {
  if (rows.shape(0) != count || rows.shape(1) != 4)
    throw ValueError(std::string(op) + ": formats have another shape than [" + std::to_string(count) + ", 4]");
  for (std::size_t i = 0; i < count; ++i) *formats[i] = {rows(i, 0), rows(i, 1) != 0, rows(i, 2), rows(i, 3)};
}

inline nanobind::list codes_list(const std::vector<std::int32_t>& codes) {
  nanobind::list list;
  for (const std::int32_t code : codes) list.append(code);
  return list;
}

inline nanobind::tuple knots_tuple(const TableKnots& knots) {
  return nanobind::make_tuple(codes_list(knots.starts), codes_list(knots.values));
}

}  // namespace qcore::bindings
