"""Facts about single models: what is not as of the others."""

LEAST_SHARES = {
    "deberta": 0.65,
    "deberta-v2": 0.8,
    "squeezebert": 0.65,
    "mobilebert": 0.85,
    "opt": 0.85,
    "mamba2": 0.7,
    "rwkv": 0.65,
    "xlnet": 0.5,
    "bart": 0.85,
    "mbart": 0.85,
    "pegasus": 0.85,
    "marian": 0.85,
    "blenderbot": 0.85,
    "led": 0.85,
    "vit": 0.5,
    "deit": 0.5,
    "dinov2": 0.5,
    "dinov2-registers": 0.5,
    "dinov3-vit": 0.5,
    "ijepa": 0.5,
    "efficientnet": 0.85,
    "depth-anything": 0.75,
    "vitdet": 0.4,
    "videomae": 0.4,
    "clip": 0.75,
    "siglip": 0.8,
    "blip": 0.75,
    "blip-2": 0.5,
    "vilt": 0.65,
    "llava": 0.75,
    "paligemma": 0.8,
    "wav2vec2": 0.6,
    "wav2vec2-conformer": 0.6,
    "hubert": 0.6,
    "wavlm": 0.3,
    "unispeech": 0.6,
    "sew": 0.65,
    "data2vec-audio": 0.1,
    "whisper": 0.8,
}
"""Shares of the parameters that are quantized where they are below 90%. The models are tiny: patches, positions and
one-dimensional convolutions, which have no rule or are read by the module above, are much of them."""

NOT_EXPORTED = ("longformer", "dbrx", "switch-transformers", "led", "vilt")
"""Models that torch.export refuses in floating point: what they compute depends on values."""

COMPILED_OTHERWISE = ("paligemma",)
"""Models that compute something else in floating point too when they are compiled or exported, by 41%."""

BOUNDS = {
    "gpt-oss": 0.25,
    "jetmoe": 0.25,
    "phimoe": 0.25,
    "mixtral": 0.25,
    "qwen2-moe": 0.25,
    "qwen3-moe": 0.25,
    "olmoe": 0.25,
    "granitemoe": 0.25,
    "dbrx": 0.25,
    "llama4": 0.25,
    "jamba": 0.25,
    "switch-transformers": 0.25,
    "deepseek-v2": 0.25,
    "deepseek-v3": 0.25,
}
"""Largest errors where a router may choose another expert."""
