#pragma once

#include "qcore/gru.h"
#include "recurrent/arguments.h"

namespace qcore {

inline RunShape gru_shape(const GruStack& stack) {
  const GruParameters& first = stack.cell(0, 0).parameters();
  const FixedFormat& y = stack.cell(stack.layers() - 1, 0).parameters().formats.h;
  return {"gru",
          stack.layers(),
          stack.directions(),
          first.input_size,
          first.hidden_size,
          first.hidden_size,
          first.formats.x,
          y,
          4};
}

inline RunArguments gru_arguments(const GruStack& stack, const TensorView& x, const TensorView* h0, const TensorView& y,
                                  const TensorView* last, const TensorView* lengths, const TensorView* gates) {
  const GruParameters& first = stack.cell(0, 0).parameters();
  return {x, y, {{{"h0", "last", &first.formats.h, first.hidden_size, h0, last}, {}}}, lengths, gates};
}

}  // namespace qcore
