#pragma once

#include <nanobind/nanobind.h>

namespace qcore::bindings {

void bind_awq(nanobind::module_& m);
void bind_conv2d(nanobind::module_& m);
void bind_runtime(nanobind::module_& m);
void bind_quantize(nanobind::module_& m);
void bind_decoder(nanobind::module_& m);
void bind_enums(nanobind::module_& m);
void bind_gru(nanobind::module_& m);
void bind_lstm(nanobind::module_& m);
void bind_linear(nanobind::module_& m);
void bind_lut(nanobind::module_& m);
void bind_lut_fit(nanobind::module_& m);
void bind_static(nanobind::module_& m);

// For InterruptCheck: throws if Ctrl-C was pressed, or if the CancelToken that this thread has entered was cancelled.
void check_interrupt();

}  // namespace qcore::bindings
