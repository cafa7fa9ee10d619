"""Tiny random models of transformers for images, audio and several kinds of inputs."""

from __future__ import annotations

import torch

from architectures.entry import BATCH, Entry, both, features, pixels, text, tokens

VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
WORDS = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 48,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
SPEECH = {
    "vocab_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": (16, 16),
    "conv_stride": (4, 4),
    "conv_kernel": (8, 4),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_prob": 0.0,
}
LLAMA = {
    "model_type": "llama",
    "use_cache": False,
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 48,
}
RESNET = {
    "model_type": "resnet",
    "embedding_size": 16,
    "hidden_sizes": [16, 32],
    "depths": [1, 1],
    "layer_type": "basic",
    "out_features": ["stage1", "stage2"],
}


def _image(name, model, size=32, *, config=None, suffix="Model", **options):
    return Entry(name, f"{model}{suffix}", f"{config or model}Config", options, pixels(size))


def _speech(name, model, suffix="ForCTC", **options):
    return Entry(name, f"{model}{suffix}", f"{model}Config", SPEECH | options, features("input_values", 400))


def _image_and_text(generator):
    """Return a picture's four placeholders (token 90) among words."""
    identifiers = tokens(generator, 12, 80)
    identifiers[:, 2:6] = 90
    image = torch.randn(BATCH, 3, 16, 16, generator=generator)
    return {"input_ids": identifiers, "pixel_values": image, "attention_mask": torch.ones_like(identifiers)}


def _whisper(generator):
    return {
        "input_features": torch.randn(BATCH, 16, 40, generator=generator),
        "decoder_input_ids": tokens(generator, 5),
    }


ENTRIES = (
    _image("vit", "ViT", suffix="ForImageClassification", **VISION),
    _image("deit", "DeiT", suffix="ForImageClassification", **VISION),
    _image("beit", "Beit", suffix="ForImageClassification", **VISION, use_relative_position_bias=True),
    _image("dinov2", "Dinov2", suffix="ForImageClassification", **VISION, mlp_ratio=2),
    _image("dinov2-registers", "Dinov2WithRegisters", **VISION, mlp_ratio=2),
    _image("dinov3-vit", "DINOv3ViT", **VISION),
    _image("vit-mae", "ViTMAE", **VISION, mask_ratio=0.0),
    _image("ijepa", "IJepa", **VISION),
    _image(
        "swin",
        "Swin",
        suffix="ForImageClassification",
        image_size=32,
        patch_size=4,
        embed_dim=16,
        depths=[1, 1],
        num_heads=[2, 4],
        window_size=4,
    ),
    _image(
        "swinv2",
        "Swinv2",
        suffix="ForImageClassification",
        image_size=32,
        patch_size=4,
        embed_dim=16,
        depths=[1, 1],
        num_heads=[2, 4],
        window_size=4,
    ),
    _image("convnext", "ConvNext", suffix="ForImageClassification", hidden_sizes=[16, 16, 32, 32], depths=[1] * 4),
    _image("convnextv2", "ConvNextV2", hidden_sizes=[16, 16, 32, 32], depths=[1] * 4),
    _image(
        "resnet", "ResNet", suffix="ForImageClassification", embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1]
    ),
    _image("regnet", "RegNet", embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], groups_width=8),
    _image(
        "efficientnet", "EfficientNet", image_size=32, width_coefficient=0.25, depth_coefficient=0.25, hidden_dim=320
    ),
    _image("mobilenet-v1", "MobileNetV1", image_size=32, depth_multiplier=0.25),
    _image("mobilenet-v2", "MobileNetV2", image_size=32, depth_multiplier=0.25),
    _image(
        "mobilevit",
        "MobileViT",
        64,
        image_size=64,
        hidden_sizes=[16, 16, 16],
        neck_hidden_sizes=[8] * 7,
        num_attention_heads=2,
    ),
    _image("mobilevitv2", "MobileViTV2", 64, image_size=64, width_multiplier=0.25),
    _image(
        "segformer",
        "Segformer",
        64,
        suffix="ForSemanticSegmentation",
        depths=[1] * 4,
        hidden_sizes=[16, 16, 32, 32],
        num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=16,
    ),
    _image("poolformer", "PoolFormer", 64, depths=[1] * 4, hidden_sizes=[16, 16, 32, 32]),
    _image(
        "pvt",
        "Pvt",
        image_size=32,
        depths=[1] * 4,
        hidden_sizes=[16, 16, 32, 32],
        num_attention_heads=[1, 2, 2, 4],
        mlp_ratios=[2] * 4,
    ),
    _image("cvt", "Cvt", 64, embed_dim=[16, 16, 32], depth=[1, 2, 3], num_heads=[1, 2, 4]),
    _image(
        "levit",
        "Levit",
        64,
        image_size=64,
        hidden_sizes=[16, 32, 32],
        num_attention_heads=[2, 2, 2],
        key_dim=[8] * 3,
        depths=[1] * 3,
    ),
    _image(
        "focalnet", "FocalNet", image_size=32, embed_dim=16, depths=[1, 1], focal_levels=[1, 1], focal_windows=[3, 3]
    ),
    _image(
        "hiera",
        "Hiera",
        32,
        image_size=[32, 32],
        patch_size=[7, 7],
        patch_stride=[4, 4],
        embed_dim=16,
        depths=[1, 1, 1],
        num_heads=[1, 2, 4],
        masked_unit_size=[8, 8],
        query_stride=[2, 2],
        masked_unit_attention=[True, True, False],
        num_query_pool=2,
    ),
    _image(
        "dpt",
        "DPT",
        32,
        suffix="ForDepthEstimation",
        **VISION | {"num_hidden_layers": 4},
        is_hybrid=False,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8] * 4,
        fusion_hidden_size=8,
    ),
    _image(
        "depth-anything",
        "DepthAnything",
        28,
        suffix="ForDepthEstimation",
        backbone_config={
            "model_type": "dinov2",
            **VISION,
            "patch_size": 14,
            "image_size": 28,
            "num_hidden_layers": 4,
            "out_indices": [1, 2, 3, 4],
            "reshape_hidden_states": False,
        },
        reassemble_hidden_size=32,
        neck_hidden_sizes=[8] * 4,
        fusion_hidden_size=8,
        head_hidden_size=8,
        patch_size=14,
    ),
    _image(
        "detr",
        "Detr",
        64,
        suffix="ForObjectDetection",
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=RESNET | {"out_features": ["stage2"]},
        num_queries=5,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
    ),
    _image(
        "yolos", "Yolos", 32, suffix="ForObjectDetection", **VISION | {"image_size": [32, 32]}, num_detection_tokens=5
    ),
    _image("vitdet", "VitDet", 32, **{key: value for key, value in VISION.items() if key != "intermediate_size"}),
    Entry(
        "videomae",
        "VideoMAEModel",
        "VideoMAEConfig",
        VISION | {"num_frames": 4, "tubelet_size": 2},
        features("pixel_values", 4, 3, 32, 32),
    ),
    Entry(
        "timesformer",
        "TimesformerModel",
        "TimesformerConfig",
        VISION | {"num_frames": 2},
        features("pixel_values", 2, 3, 32, 32),
    ),
    Entry(
        "clip",
        "CLIPModel",
        "CLIPConfig",
        {"text_config": WORDS, "vision_config": VISION, "projection_dim": 16},
        both(text, pixels(32)),
    ),
    Entry(
        "siglip", "SiglipModel", "SiglipConfig", {"text_config": WORDS, "vision_config": VISION}, both(text, pixels(32))
    ),
    Entry(
        "blip",
        "BlipModel",
        "BlipConfig",
        {"text_config": WORDS, "vision_config": VISION, "projection_dim": 16},
        both(text, pixels(32)),
    ),
    Entry("blip-2", "Blip2VisionModel", "Blip2VisionConfig", VISION, pixels(32)),
    Entry("vilt", "ViltModel", "ViltConfig", VISION | {"vocab_size": 96}, both(text, pixels(32))),
    Entry("flava", "FlavaImageModel", "FlavaImageConfig", VISION, pixels(32)),
    Entry("layoutlm", "LayoutLMModel", "LayoutLMConfig", WORDS, "text"),
    Entry(
        "llava",
        "LlavaForConditionalGeneration",
        "LlavaConfig",
        {
            "text_config": LLAMA,
            "image_token_index": 90,
            "vision_config": {"model_type": "clip_vision_model", **VISION, "image_size": 16},
            "image_seq_length": 4,
        },
        _image_and_text,
    ),
    Entry(
        "paligemma",
        "PaliGemmaForConditionalGeneration",
        "PaliGemmaConfig",
        {
            "text_config": LLAMA | {"model_type": "gemma", "head_dim": 8},
            "image_token_index": 90,
            "vision_config": {"model_type": "siglip_vision_model", **VISION, "image_size": 16},
            "projection_dim": 32,
        },
        _image_and_text,
    ),
    _speech("wav2vec2", "Wav2Vec2"),
    _speech("wav2vec2-conformer", "Wav2Vec2Conformer"),
    _speech("hubert", "Hubert"),
    _speech("wavlm", "WavLM"),
    _speech("unispeech", "UniSpeech"),
    _speech("sew", "SEW"),
    _speech("data2vec-audio", "Data2VecAudio"),
    Entry(
        "whisper",
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            "vocab_size": 96,
            "d_model": 32,
            "num_mel_bins": 16,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "max_source_positions": 20,
            "max_target_positions": 20,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 2,
        },
        _whisper,
    ),
    Entry(
        "audio-spectrogram",
        "ASTModel",
        "ASTConfig",
        {**VISION, "max_length": 32, "num_mel_bins": 16},
        features("input_values", 32, 16),
    ),
    Entry(
        "time-series",
        "PatchTSTModel",
        "PatchTSTConfig",
        {
            "num_input_channels": 2,
            "context_length": 16,
            "patch_length": 4,
            "patch_stride": 4,
            "d_model": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "ffn_dim": 32,
            "do_mask_input": False,
        },
        features("past_values", 16, 2),
    ),
    Entry(
        "decision-transformer",
        "DecisionTransformerGPT2Model",
        "DecisionTransformerConfig",
        {"hidden_size": 32, "n_layer": 2, "n_head": 4, "n_positions": 48, "vocab_size": 96, "n_inner": 64},
        features("inputs_embeds", 8, 32),
    ),
)
