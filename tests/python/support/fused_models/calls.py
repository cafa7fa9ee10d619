"""Inputs of fused models, and what the tests compare."""

import torch

LENGTH, PADDING = 14, 5


def prompt(batch=2):
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(2, 128, (batch, LENGTH), generator=generator)
    mask = torch.ones_like(ids)
    if batch > 1:
        ids[1, :PADDING] = mask[1, :PADDING] = 0
    return {"input_ids": ids, "attention_mask": mask}


def greedy(model, inputs, tokens=30, **options):
    return model.generate(
        **inputs,
        max_new_tokens=tokens,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
        **options,
    )


def relative(got, expected):
    return float((got.float() - expected.float()).norm() / expected.float().norm())
