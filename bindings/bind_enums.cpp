#include <nanobind/nanobind.h>

#include "bind.h"
#include "qcore/decoder.h"
#include "qcore/gru.h"
#include "qcore/linear.h"
#include "qcore/lut.h"
#include "qcore/quantize.h"
#include "qcore/tensor_view.h"

namespace nb = nanobind;

namespace qcore::bindings {

// Binds the enumerations of the public headers, so that Python passes their values and never a number.
void bind_enums(nb::module_& m) {
  nb::enum_<DType>(m, "DType")
      .value("f32", DType::f32)
      .value("f16", DType::f16)
      .value("bf16", DType::bf16)
      .value("i8", DType::i8)
      .value("u8", DType::u8)
      .value("i32", DType::i32)
      .value("i16", DType::i16)
      .value("i64", DType::i64);
  nb::enum_<ComputeMode>(m, "ComputeMode")
      .value("floating", ComputeMode::floating)
      .value("int8", ComputeMode::int8)
      .value("int8_asym", ComputeMode::int8_asym)
      .value("int16", ComputeMode::int16)
      .value("int8_token", ComputeMode::int8_token);
  nb::enum_<ActivationKind>(m, "ActivationKind")
      .value("none", ActivationKind::none)
      .value("clamp", ActivationKind::clamp)
      .value("silu", ActivationKind::silu)
      .value("gelu", ActivationKind::gelu)
      .value("tanh", ActivationKind::tanh)
      .value("sigmoid", ActivationKind::sigmoid)
      .value("gelu_tanh", ActivationKind::gelu_tanh);
  nb::enum_<Method>(m, "Method").value("rtn", Method::rtn).value("mse", Method::mse).value("awq", Method::awq);
  nb::enum_<ParameterType>(m, "ParameterType")
      .value("none", ParameterType::none)
      .value("f32", ParameterType::f32)
      .value("f16", ParameterType::f16)
      .value("bf16", ParameterType::bf16)
      .value("e8m0", ParameterType::e8m0)
      .value("e4m3", ParameterType::e4m3)
      .value("u4", ParameterType::u4)
      .value("u6", ParameterType::u6)
      .value("u8", ParameterType::u8)
      .value("z4", ParameterType::z4)
      .value("z8", ParameterType::z8);
  nb::enum_<LutReduction>(m, "LutReduction")
      .value("none", LutReduction::none)
      .value("exp", LutReduction::exp)
      .value("log", LutReduction::log)
      .value("reciprocal", LutReduction::reciprocal)
      .value("sqrt", LutReduction::sqrt)
      .value("rsqrt", LutReduction::rsqrt)
      .value("periodic", LutReduction::periodic);
  nb::enum_<GateActivation>(m, "GateActivation")
      .value("silu", GateActivation::silu)
      .value("gelu", GateActivation::gelu)
      .value("gelu_tanh", GateActivation::gelu_tanh)
      .value("relu", GateActivation::relu);
  nb::enum_<RotaryLayout>(m, "RotaryLayout")
      .value("halves", RotaryLayout::halves)
      .value("interleaved", RotaryLayout::interleaved);
  nb::enum_<GruPipeline>(m, "GruPipeline").value("staged", GruPipeline::staged).value("fused", GruPipeline::fused);
  nb::enum_<ShiftRounding>(m, "ShiftRounding")
      .value("half_away", ShiftRounding::half_away)
      .value("half_even", ShiftRounding::half_even);
  nb::enum_<GruTableKind>(m, "GruTableKind").value("exact", GruTableKind::exact).value("interp", GruTableKind::interp);
}

}  // namespace qcore::bindings
