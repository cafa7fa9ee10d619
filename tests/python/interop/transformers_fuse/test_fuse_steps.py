"""Steps of a fused model without a device: when they are recorded, and that generate() reads masks once.

A recorded step is stood in for by the call that would be recorded, over the same arrays.
"""

import copy
import io
import warnings

import pytest
import torch
from fused_models import tiny_models
from fused_models.calls import greedy, prompt
from transformers.cache_utils import DynamicCache

from qcore.transformers import LayerByLayerWarning, fuse_, unfuse_
from qcore.transformers.fuse import graphs as fuse_graphs
from qcore.transformers.fuse import inputs as fuse_inputs
from qcore.transformers.kv_cache import KvLayer


@pytest.fixture
def recorder(monkeypatch):
    """Let steps on the CPU be "recorded": a replay repeats the call."""

    def record(run, device):
        run()
        return run

    monkeypatch.setattr(fuse_graphs, "can_record", lambda hidden: True)
    monkeypatch.setattr(fuse_graphs, "current_stream", lambda device: 0)
    monkeypatch.setattr(fuse_graphs, "record", record)


def graphs(model):
    return model._qcore_stack.graphs


@pytest.mark.parametrize("name", ("llama", "qwen2"))
@pytest.mark.parametrize("batch", (1, 2))
def test_replayed_steps_give_the_logits_of_plain_ones(recorder, name, batch):
    model = tiny_models.make(name)
    inputs = prompt(batch)
    fuse_(model)
    graphs(model).enabled = False
    plain = greedy(model, inputs, 80)
    graphs(model).enabled = True
    got = greedy(model, inputs, 80)
    assert torch.equal(got.sequences, plain.sequences)
    assert torch.equal(torch.stack(got.logits), torch.stack(plain.logits))
    # 79 steps, over caches for 64 and for 128 positions; the first step of each is not replayed.
    assert (graphs(model).recorded, graphs(model).replayed) == (2, 77)


def test_steps_are_recorded_for_each_batch_and_kept_for_memory_that_comes_again(recorder):
    model = tiny_models.make("llama")
    fuse_(model)
    for batch in (1, 2):
        before = graphs(model).recorded
        greedy(model, prompt(batch), 6)
        assert graphs(model).recorded == before + 1
    graphs(model).clear()  # the next cache may get the memory of an earlier one
    ids = prompt(1)["input_ids"]
    cache, results = DynamicCache(), []
    recorded = graphs(model).recorded
    with torch.no_grad():
        for _ in range(2):
            model(ids, past_key_values=cache)
            steps = [model(ids[:, :1], past_key_values=cache).logits for _ in range(3)]
            results.append(torch.stack(steps))
            cache.crop(-cache.get_seq_length())
    assert graphs(model).recorded == recorded + 1
    assert torch.equal(*results)


def test_caches_are_released_with_their_owner():
    model = tiny_models.make("llama")
    fuse_(model)
    stack = model._qcore_stack
    cache = DynamicCache()
    with torch.no_grad():
        model(prompt(1)["input_ids"], past_key_values=cache)
    assert len(stack._caches.arrays) == model.config.num_hidden_layers
    del cache
    assert not stack._caches.arrays


def test_a_cache_that_moves_at_every_token_is_not_recorded(recorder, monkeypatch):
    model = tiny_models.make("llama", compute="float")
    expected = greedy(model, prompt(), 12, num_beams=3).sequences
    fuse_(model)
    select, kept = KvLayer._select, []

    def select_elsewhere(self, make):
        kept.append(self.arrays)  # so that their memory does not come again
        select(self, make)

    monkeypatch.setattr(KvLayer, "_select", select_elsewhere)
    assert torch.equal(greedy(model, prompt(), 12, num_beams=3).sequences, expected)
    assert kept and graphs(model).recorded == 0


def test_copies_have_steps_of_their_own(recorder):
    model = tiny_models.make("llama")
    fuse_(model)
    expected = greedy(model, prompt(), 8).sequences
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        assert graphs(other) is not graphs(model)
        assert graphs(other).recorded == 0
        assert torch.equal(greedy(other, prompt(), 8).sequences, expected)
        assert graphs(other).recorded == 1
        unfuse_(other)
        assert torch.equal(greedy(other, prompt(), 8).sequences, expected)


def test_a_failed_recording_is_a_warning(recorder, monkeypatch):
    model = tiny_models.make("llama")
    fuse_(model)
    expected = greedy(model, prompt(), 8).sequences

    def fail(run, device):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(fuse_graphs, "record", fail)
    graphs(model).clear()
    with pytest.warns(RuntimeWarning, match="without CUDA graphs, since recording one failed: operation not permitted"):
        assert torch.equal(greedy(model, prompt(), 8).sequences, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        greedy(model, prompt(), 8)


class TestReads:
    """Counts how often the host reads masks and positions."""

    @pytest.fixture
    def reads(self, monkeypatch):
        """Count the masks and the positions that are read."""
        counts = {"mask": 0, "positions": 0}
        read_mask, aminmax = fuse_inputs._read_mask, torch.aminmax

        def count_mask(mask):
            counts["mask"] += 1
            return read_mask(mask)

        def count_positions(positions):
            counts["positions"] += 1
            return aminmax(positions)

        monkeypatch.setattr(fuse_inputs, "_read_mask", count_mask)
        monkeypatch.setattr(torch, "aminmax", count_positions)
        return counts

    @pytest.mark.parametrize("options", ({"do_sample": False}, {"num_beams": 3}), ids=str)
    def test_generate_reads_them_once(self, reads, options):
        model = tiny_models.make("qwen2")
        fuse_(model)
        reads.update(mask=0, positions=0)
        model.generate(**prompt(), max_new_tokens=10, **options)
        assert reads == {"mask": 1, "positions": 1}
        with torch.inference_mode():
            # Tensors of inference mode that are not generate's own are read at each use: before the call, and by it.
            model.generate(**prompt(), max_new_tokens=10, **options)
        assert reads["mask"] <= 3 and reads["positions"] <= 3

    def test_a_mask_that_was_changed_is_read_again(self, reads):
        model = tiny_models.make("llama", compute="float")
        inputs = prompt()
        expected = []
        for begin in (5, 2):
            inputs["attention_mask"][1] = (torch.arange(14) >= begin).long()
            expected.append(greedy(model, inputs, 6).sequences)
        fuse_(model)
        for begin, sequences in zip((5, 2), expected, strict=True):
            inputs["attention_mask"][1] = (torch.arange(14) >= begin).long()
            assert torch.equal(greedy(model, inputs, 6).sequences, sequences)

    def test_positions_below_zero_run_layer_by_layer(self):
        model = tiny_models.make("llama")
        fuse_(model)
        ids = prompt(1)["input_ids"]
        with pytest.warns(LayerByLayerWarning, match="position_ids has the element -2, expected numbers from 0"):
            model(ids, position_ids=torch.arange(-2, 12)[None])
