"""Static int8 convolutions: workloads, implementations and summary.

Layers are packed before they are timed; a call goes from codes to codes. A result's error is the mean distance of its
codes from the exact ones.
"""
