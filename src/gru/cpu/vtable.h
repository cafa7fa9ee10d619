#pragma once

#include "numerics/recurrent/gru_cell.h"
#include "recurrent/cpu/vtable.h"

namespace qcore {

constexpr int kGruGates = 3;

struct GruLayer : RecurrentLayer {
  bool staged;
  // In lanes of 32 bits. Shifts that drop every bit are the largest that a lane can make.
  numerics::GruCell cell;
  CellTable tables[3];
  const std::int32_t* biases[4];  // [groups][16], as GruBiases; staged pipeline
  // By the definition, where 32 bits are not enough.
  numerics::GruCell scalar_cell;
  const std::int32_t* scalar_tables[3];
  const std::int64_t* scalar_biases[4];  // [H]
  std::int32_t rb_zero;                  // zero point of R h + br as the gates have it
  // linear_before_reset = 0, which has_second says: `state` is the product of z alone, this that of r.
  CodeProduct reset_gate;
  std::int32_t reset_zero;  // zero point of r * h
};

extern const RecurrentKernels kGruAvx2, kGruAvxVnni, kGruAvx512Vnni;
extern const RecurrentKernels kGruNeon, kGruNeonDotprod;
extern const RecurrentKernels kGruGeneric128;

}  // namespace qcore
