. /tmp/w/env.sh
cd $1
pip download -q --no-deps nvidia-cutlass==4.2.0.0 -d /tmp/w/dl >/dev/null 2>&1
pip install -q --no-deps nvidia-cutlass==4.2.0.0
pip wheel --no-build-isolation --no-deps -C cmake.define.QCORE_CUDA=ON -C cmake.define.QCORE_CUDA_ARCHITECTURES_SM80=90-real -C build-dir=build/cuda -w /tmp/w/cudawheel . > /tmp/w/cudawheel.log 2>&1; echo "rc $?" >> /tmp/w/cudawheel.log
