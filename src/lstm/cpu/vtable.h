#pragma once

#include "numerics/recurrent/lstm_cell.h"
#include "recurrent/cpu/vtable.h"

namespace qcore {

constexpr int kLstmGates = numerics::kLstmGates, kLstmPeepholes = numerics::kLstmPeepholes;

struct LstmLayer : RecurrentLayer {
  // In lanes of 32 bits. Shifts that drop every bit are the largest that a lane can make.
  numerics::LstmCell cell;
  CellTable tables[kLstmGates + 1];
  // By the definition, where 32 bits are not enough.
  numerics::LstmCell scalar_cell;
  const std::int32_t* scalar_tables[kLstmGates + 1];
  const std::int32_t* peepholes[kLstmPeepholes];  // [groups][16]; where cell.peepholes says so
  std::int32_t m_zero;                            // of has_second, which a projection has: zero point of m
};

extern const RecurrentKernels kLstmAvx2, kLstmAvxVnni, kLstmAvx512Vnni;
extern const RecurrentKernels kLstmNeon, kLstmNeonDotprod;
extern const RecurrentKernels kLstmGeneric128;

}  // namespace qcore
