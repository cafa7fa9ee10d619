#include "lut/cpu/row_lanes.h"
#include "lut/table_arrays.h"
#include "simd/lanes_generic128.h"

namespace qcore {
namespace {

struct L : GenericLanes128 {
  QCORE_NUMERIC void stream(float* y, F x) { store(y, x); }
  QCORE_NUMERIC void stream_half(std::uint16_t* y, F x) { store_half(y, x); }
  QCORE_NUMERIC void stream_bfloat(std::uint16_t* y, F x) { store_bfloat(y, x); }
  QCORE_NUMERIC void fence() {}
  QCORE_NUMERIC std::uint32_t any_nan(F) { return 1; }  // a choice in each vector costs no more than finding out
};

// Any table. Entries are loaded one by one, because there are no gathers.
struct Table128 : numerics::LutOneStep<L, Table128> {
  const numerics::LutView* t;

  QCORE_INLINE explicit Table128(const numerics::LutView& view) : t(&view) {}

  QCORE_INLINE L::F low() const { return L::set(t->low()); }
  QCORE_INLINE L::F high() const { return L::set(t->high()); }
  QCORE_INLINE L::I interval(L::F x) const {
    L::I i = L::set(0);
    for (std::int32_t k = 1; k <= t->intervals; ++k) i = L::sub(i, x >= L::set(t->cuts[k]));  // lanes are 0 or -1
    return i;
  }
  QCORE_INLINE L::F position(L::F x, L::I i) const {
    const L::F p = L::mul(L::sub(x, gathered<L::F>(t->cuts, i)), gathered<L::F>(t->scales, i));
    return L::at_most(p, gathered<L::F>(t->lengths, i));
  }
  QCORE_INLINE void place(L::F p, L::I i, L::I& q, L::F& a) const {
    const L::I j = L::truncate(p);
    q = L::add(gathered<L::I>(t->firsts, i), j);
    a = L::sub(p, L::to_float(j));
  }
  QCORE_INLINE void entry(L::I q, L::F& value, L::F& delta) const {
    value = gathered<L::F>(t->values, q);
    delta = gathered<L::F>(t->deltas, q);
  }

 private:
  template <class Vector, class Element>
  QCORE_NUMERIC Vector gathered(const Element* table, L::I i) {
    return Vector{table[i[0]], table[i[1]], table[i[2]], table[i[3]]};
  }
};

void run(const LutArrays& table, const LutRun& run) { map_reduced<L>(table.reduction, run, Table128(table.view)); }

void softmax_row(const LutRow& row, const LutArrays& exp, const LutArrays& reciprocal) {
  softmax_lanes<L>(row, Table128(exp.view), reciprocal);
}

void rms_norm_row(const LutRow& row, const float* weight, float eps, const LutArrays& rsqrt) {
  rms_norm_lanes<L>(row, weight, eps, rsqrt);
}

}  // namespace

extern const LutKernels kLutGeneric128{run, softmax_row, rms_norm_row, load_row<L>, store_row<L>};

}  // namespace qcore
