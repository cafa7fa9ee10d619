"""The options of `qcore quantize` for a folder of transformers: which of the model's layers are quantized."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from qcore import _core
from qcore.formats.checkpoint.options import Options
from qcore.formats.checkpoint.reader import Checkpoint
from qcore.formats.checkpoint.selection import check_patterns, matching


def of_folder(
    options: Options, source: Path, checkpoint: Checkpoint, lm_head: bool | None, embeddings: bool | None
) -> Options:
    """Return the options with the weights of the model's layers.

    Args:
        options: as they were given.
        source: the model's folder.
        checkpoint: its tensors.
        lm_head: whether the head is quantized; None for the format's default.
        embeddings: whether embeddings are.

    Raises:
        QcoreValueError: the format has no place for a head, embeddings or experts in one tensor, some weights of a
            mixture of experts are left and others not, or transformers isn't there.
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
    if options.include:
        wanted = {name for name in wanted if matching(name, options.include)}
    wanted = {name for name in wanted if not matching(name, options.exclude)}
    if foreign:
        for name in sorted(wanted & set(plan.experts)):
            raise _core.QcoreValueError(
                f"quantize: {name} has {checkpoint.info(name).shape[0]} experts in one tensor, expected one tensor per "
                f"expert with --format {options.format}, or --format qcore, or --exclude '{name}' to leave it"
            )
        wanted = {name for name in wanted if len(checkpoint.info(name).shape) == 2}
    layout = options.target()
    reasons = {
        name: _misfit(checkpoint, name, options, layout) if name in wanted else "it is not chosen"
        for name in plan.layers
    }
    _check_mixtures(plan.mixtures, reasons)
    left = [plan.modules[name] for name in plan.layers if name not in plan.embeddings and reasons[name]]
    experts = tuple((name, template) for name, template in plan.experts.items() if name in wanted)
    return replace(
        options, model=str(source), layers=tuple(sorted(wanted)), left=tuple(dict.fromkeys(left)), experts=experts
    )


def _check_mixtures(mixtures: Mapping[str, str], reasons: Mapping[str, str]) -> None:
    """Raise if some weights of a mixture of experts are left and others aren't: a module packs all or none."""
    for path in dict.fromkeys(mixtures.values()):
        names = [name for name in mixtures if mixtures[name] == path]
        left = next((name for name in names if reasons[name]), None)
        taken = next((name for name in names if not reasons[name]), None)
        if left is not None and taken is not None:
            raise _core.QcoreValueError(
                f"quantize: {left} stays in floating point ({reasons[left]}) and {taken} does not, expected the same "
                f"of all weights of the experts {path}: --exclude leaves all that match a pattern"
            )


def _misfit(checkpoint: Checkpoint, name: str, options: Options, layout: object) -> str:
    from qcore.formats.checkpoint.layout import Description

    shape = checkpoint.info(name).shape
    about = Description(shape[1:] if len(shape) == 3 else shape, options.bits, options.block_size, options.scheme)
    reason: str = layout.misfit(name, about)  # type: ignore[attr-defined]
    return reason
