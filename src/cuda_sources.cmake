# Lists the CUDA sources, for libqcore and for tests/cuda_host, which compiles them as C++ for the CPU.
#
# Each kind of object is compiled for its own targets: our own kernels for all of them, those that need instructions of
# an architecture from it on. CUTLASS's templates for sm_75 and sm_80 differ; its kernels are not compiled for the CPU.
set(QCORE_CUDA_OWN
    awq/awq_arithmetic.cu
    awq/awq_lop3.cu
    awq/awq_pack.cu
    conv2d/conv2d_depthwise.cu
    conv2d/conv2d_direct.cu
    conv2d/conv2d_implicit_gemm.cu
    conv2d/conv2d_implicit_gemm_float.cu
    conv2d/quantize_pixels.cu
    cuda/quantize_activations.cu
    cuda/split_rows.cu
    cuda/weight_sums.cu
    decoder/cuda/attention.cu
    decoder/cuda/heads.cu
    decoder/cuda/rows.cu
    embedding/embedding_cuda.cu
    gru/fixed_codes.cu
    gru/gru_cuda.cu
    gru/gru_persistent.cu
    gru/gru_step.cu
    gru/input_product.cu
    gru/pack_steps.cu
    linear/dequantize_accumulate.cu
    linear/gather_rows.cu
    linear/gemv_float.cu
    linear/gemv_int8.cu
    linear/gemv_integer.cu
    linear/linear_float_mma.cu
    linear/linear_fused.cu
    linear/linear_gemv.cu
    linear/linear_int8_mma.cu
    linear/linear_simt.cu
    linear/linear_sliced.cu
    linear/linear_wgmma.cu
    linear/simt_float.cu
    linear/simt_integer.cu
    linear/unpack_weight.cu
    lut/direct_map.cu
    lut/lut.cu
    lut/rms_norm.cu
    lut/softmax.cu
    static/static_depthwise.cu
    static/static_direct.cu
    static/static_gemm.cu
    static/static_implicit_gemm.cu)
set(QCORE_CUDA_FUSED conv2d/implicit_gemm.cu linear/fused_integer.cu)
set(QCORE_CUDA_FLOAT_MMA
    conv2d/implicit_gemm_float_bf16.cu
    conv2d/implicit_gemm_float_f16.cu
    conv2d/implicit_gemm_float_f32.cu
    linear/float_mma_bf16.cu
    linear/float_mma_f16.cu
    linear/float_mma_f32.cu)
set(QCORE_CUDA_INT8_MMA linear/int8_mma_w4.cu linear/int8_mma_w8.cu)
set(QCORE_CUDA_WGMMA linear/wgmma_integer.cu)
set(QCORE_CUDA_CUTLASS_SM75 linear/gemm_int8_sm75.cu)
set(QCORE_CUDA_CUTLASS_SM80 linear/gemm_int8_sm80.cu)
# C++ that only the CUDA backend needs.
set(QCORE_CUDA_CXX gru/gru_device.cpp lut/lut_device.cpp runtime/cuda_device.cpp runtime/cuda_scratch.cpp)
