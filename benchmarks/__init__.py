"""The benchmark harness: qcore's operators beside other libraries', on the CPU and on CUDA devices. See README.md.

An operator is a folder with its workloads, qcore's own implementations, its baselines (a file per library and kind) and
its summary; gpu/ has the same operators on a device. Everything else here serves them all.
"""
