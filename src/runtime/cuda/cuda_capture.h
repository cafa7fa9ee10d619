#pragma once

#include "runtime/cuda/cuda_check.h"

namespace qcore {

// Lets the calling thread do what is no stream operation, but would be forbidden while a stream is being captured in
// "global" mode: allocations, and streams and pools of our own.
class RelaxedCapture {
 public:
  RelaxedCapture() { QCORE_CHECK_CUDA(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace qcore
