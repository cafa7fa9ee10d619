# The CUDA backend's part of libqcore. Our own kernels are compiled for every target; CUTLASS's for sm_75 and sm_80 are
# different templates, each compiled for its own targets.
find_package(CUDAToolkit REQUIRED)
set(own_architectures ${QCORE_CUDA_ARCHITECTURES_SM75} ${QCORE_CUDA_ARCHITECTURES_SM80})
list(REMOVE_DUPLICATES own_architectures)
qcore_add_cuda(
  qcore_cuda
  ARCHITECTURES ${own_architectures}
  SOURCES awq/awq_arithmetic.cu awq/awq_lop3.cu awq/awq_pack.cu conv2d/conv2d_depthwise.cu
          conv2d/conv2d_direct.cu conv2d/conv2d_implicit_gemm.cu
          conv2d/conv2d_implicit_gemm_float.cu conv2d/quantize_pixels.cu decoder/cuda/attention.cu
          decoder/cuda/heads.cu decoder/cuda/rows.cu embedding/embedding_cuda.cu
          gru/fixed_codes.cu gru/gru_cuda.cu gru/gru_persistent.cu gru/gru_step.cu gru/input_product.cu
          gru/pack_steps.cu linear/dequantize_accumulate.cu linear/gather_rows.cu linear/gemv_float.cu linear/gemv_int8.cu
          linear/gemv_integer.cu linear/linear_float_mma.cu linear/linear_fused.cu linear/linear_gemv.cu
          linear/linear_int8_mma.cu
          linear/linear_simt.cu linear/linear_sliced.cu linear/linear_wgmma.cu cuda/quantize_activations.cu
          linear/simt_float.cu linear/simt_integer.cu cuda/split_rows.cu linear/unpack_weight.cu
          cuda/weight_sums.cu lut/direct_map.cu lut/lut.cu lut/rms_norm.cu lut/softmax.cu static/gemm_operands.cu
          static/static_cutlass.cu static/static_depthwise.cu static/static_direct.cu static/static_gemm.cu
          static/static_implicit_gemm.cu)
qcore_add_cuda(qcore_cuda_fused ARCHITECTURES ${QCORE_CUDA_ARCHITECTURES_SM80} SOURCES conv2d/implicit_gemm.cu linear/fused_integer.cu)
qcore_add_cuda(qcore_cuda_float_mma ARCHITECTURES ${QCORE_CUDA_ARCHITECTURES_SM80}
               SOURCES conv2d/implicit_gemm_float_bf16.cu conv2d/implicit_gemm_float_f16.cu conv2d/implicit_gemm_float_f32.cu
                       linear/float_mma_bf16.cu linear/float_mma_f16.cu linear/float_mma_f32.cu)
qcore_add_cuda(qcore_cuda_int8_mma ARCHITECTURES ${QCORE_CUDA_ARCHITECTURES_SM90A}
               SOURCES linear/int8_mma_w4.cu linear/int8_mma_w8.cu)
qcore_add_cuda(qcore_cuda_wgmma ARCHITECTURES ${QCORE_CUDA_ARCHITECTURES_SM90A} SOURCES linear/wgmma_integer.cu)
qcore_add_cuda(qcore_cuda_sm75 ARCHITECTURES ${QCORE_CUDA_ARCHITECTURES_SM75} SOURCES linear/gemm_int8_sm75.cu static/gemm_requantise_sm75.cu)
qcore_add_cuda(qcore_cuda_sm80 ARCHITECTURES ${QCORE_CUDA_ARCHITECTURES_SM80}
               SOURCES linear/gemm_int8_accumulate_sm80.cu linear/gemm_int8_sm80.cu static/gemm_requantise_sm80.cu)
target_sources(qcore PRIVATE gru/gru_device.cpp lut/lut_device.cpp runtime/cuda_device.cpp runtime/cuda_scratch.cpp)
target_link_libraries(qcore PRIVATE $<BUILD_INTERFACE:CUDA::cudart_static>)
