"""Quantizes a tiny random model of each of many architectures: it works as before, and what is left has a reason."""

import copy
import io
import warnings

import pytest
import torch
from architectures import blocks, language, others
from architectures.entry import relative_error, results

import qcore.torch as qt

ENTRIES = {entry.name: entry for entry in (*language.ENTRIES, *others.ENTRIES, *blocks.ENTRIES)}


def available(entry):
    """Return the entry as a parameter that is skipped where its package is missing."""
    return pytest.param(entry, id=entry.name, marks=() if entry.is_available() else pytest.mark.skip(entry.missing()))


every = pytest.mark.parametrize("entry", [available(entry) for entry in ENTRIES.values()])


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny products only lose by more
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_num_threads(threads)


def pickled(model):
    """Return a whole model as bytes, None if it can't be pickled: parametrizations and hooks of transformers can't."""
    file = io.BytesIO()
    try:
        torch.save(model, file)
    except (RuntimeError, AttributeError):
        return None
    return file.getvalue()


@every
@torch.no_grad()
def test_works_as_before(entry):
    model, arguments = entry.make(), entry.sample()
    exact = results(model, arguments)
    picklable = pickled(model) is not None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = qt.quantize_(model, bits=8)
    assert all(layer.quantized or layer.note for layer in report.layers)
    assert any("parameters" in str(each.message) for each in caught) == (report.share < 0.9)
    assert report.share >= entry.least_share
    assert report.parameters == sum(each.numel() for each in entry.make().parameters())
    got = results(model, arguments)
    assert (relative_error(got, exact) > 0) == (report.quantized_parameters > 0)
    assert relative_error(got, exact) < entry.bound

    if hasattr(model, "tie_weights"):
        model.tie_weights()
        assert relative_error(results(model, arguments), got) == 0
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    other = entry.make()
    qt.restore_(other, torch.load(io.BytesIO(file.getvalue())))
    assert relative_error(results(other, arguments), got) == 0
    assert repr(other) == repr(model)
    assert relative_error(results(copy.deepcopy(model), arguments), got) == 0
    if picklable:
        whole = torch.load(io.BytesIO(pickled(model)), weights_only=False)
        assert relative_error(results(whole, arguments), got) == 0

    # Exported modules trace their operators as "aot_eager" does, which takes twice the time and would show no more.
    compiled = torch.compile(model, backend="eager" if entry.exports else "aot_eager")
    assert not entry.compiles or relative_error(results(compiled, arguments), got) < 1e-3
    if entry.exports:
        positional, keywords = entry.call(arguments)
        program = torch.export.export(model, positional, keywords, strict=False)
        assert not entry.compiles or relative_error(results(program.module(), arguments), got) < 1e-3


def test_there_are_enough():
    assert sum(entry.package == "transformers" for entry in ENTRIES.values()) >= 60
    assert sum(entry.package != "transformers" for entry in ENTRIES.values()) >= 20
