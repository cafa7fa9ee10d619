"""The options of `qcore quantize` for a folder of transformers: which of the model's layers are quantized."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from qcore import _core
from qcore.formats.checkpoint.choice import check_patterns, matching
from qcore.formats.checkpoint.opened import Checkpoint
from qcore.formats.checkpoint.options import Options


def of_folder(
    options: Options, source: Path, checkpoint: Checkpoint, lm_head: bool | None, embeddings: bool | None
) -> Options:
    """Returns the options with the weights of the model's layers.

    Args:
        options: as they were given.
        source: the model's folder.
        checkpoint: its tensors.
        lm_head: whether the head is quantized; None for the format's default.
        embeddings: whether embeddings are.

    Raises:
        QcoreValueError: the format has no place for a head or embeddings, or transformers isn't there.
    """
    foreign = options.format != "qcore"
    for name, value in (("--embeddings", embeddings), ("--lm-head", lm_head)):
        if foreign and value:
            raise _core.QcoreValueError(
                f"quantize: {name} with --format {options.format}, expected --format qcore: loaders of that format "
                "read these in floating point"
            )
    try:
        from qcore.transformers.folder_plan import folder_plan
    except ImportError as error:
        raise _core.QcoreValueError(
            f"quantize: {source} is a folder of transformers, which isn't installed: pip install "
            f"'libqcore[transformers]', or name a .safetensors file as OUT ({error})"
        ) from error
    check_patterns(checkpoint, options.include, options.exclude)
    plan = folder_plan(source, checkpoint)
    wanted = set(plan.layers)
    if foreign or lm_head is False:
        wanted -= plan.heads
    if foreign or embeddings is False:
        wanted -= plan.embeddings
    if foreign:
        wanted = {name for name in wanted if len(checkpoint.info(name).shape) == 2}
    if options.include:
        wanted = {name for name in wanted if matching(name, options.include)}
    wanted = {name for name in wanted if not matching(name, options.exclude)}
    layout = options.target()
    left = [
        plan.modules[name]
        for name in plan.layers
        if name not in plan.embeddings and (name not in wanted or _misfit(checkpoint, name, options, layout))
    ]
    return replace(options, model=str(source), layers=tuple(sorted(wanted)), left=tuple(left))


def _misfit(checkpoint: Checkpoint, name: str, options: Options, layout: object) -> str:
    from qcore.formats.checkpoint.layout import Description

    about = Description(checkpoint.info(name).shape, options.bits, options.block_size, options.scheme)
    reason: str = layout.misfit(name, about)  # type: ignore[attr-defined]
    return reason
