// Quantizes a small weight to 4 bits, multiplies with it, and shows what an error looks like.
#include <qcore/qcore.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

int main() {
  constexpr std::int64_t M = 2, N = 16, K = 96;
  std::vector<float> weight(N * K), x(M * K), y(M * N);
  for (std::int64_t i = 0; i < N * K; ++i) weight[i] = std::sin(0.37f * static_cast<float>(i));
  for (std::int64_t i = 0; i < M * K; ++i) x[i] = std::cos(0.11f * static_cast<float>(i));

  // Views describe memory that the program owns.
  using qcore::DType;
  using qcore::TensorView;
  const TensorView weight_view(weight.data(), DType::f32, {N, K});
  const TensorView x_view(x.data(), DType::f32, {M, K}), y_view(y.data(), DType::f32, {M, N});

  qcore::QuantizeOptions form;
  form.bits = 4;
  form.block_size = 32;
  const auto quantized = qcore::QuantizedTensor::quantize(weight_view, form);
  std::printf("qcore %s: %lld x %lld weights, %.2f bits each\n", QCORE_VERSION, static_cast<long long>(N),
              static_cast<long long>(K), quantized.bits_per_weight());

  qcore::linear(x_view, quantized, nullptr, y_view, {});
  std::printf("kernel: %s\n", qcore::last_kernel("linear").c_str());

  double largest = 0;
  for (std::int64_t m = 0; m < M; ++m)
    for (std::int64_t n = 0; n < N; ++n) {
      double exact = 0;
      for (std::int64_t k = 0; k < K; ++k) exact += static_cast<double>(x[m * K + k]) * weight[n * K + k];
      if (n < 4)
        std::printf("y[%lld, %lld] = %9.5f, unquantized %9.5f\n", static_cast<long long>(m), static_cast<long long>(n),
                    y[m * N + n], exact);
      largest = std::fmax(largest, std::fabs(exact - y[m * N + n]));
    }

  try {
    qcore::linear(y_view, quantized, nullptr, x_view, {});
    return 1;
  } catch (const qcore::Error& error) {
    std::printf("error: %s\n", error.what());
  }
  return largest < 1.0 ? 0 : 1;
}
