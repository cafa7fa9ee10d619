"""vLLM's own layers on the CPU: its platform, a group of one process, and ranks that tests choose."""

import contextlib

import torch
import vllm.platforms
from vllm.platforms.cpu import CpuPlatform

# Before any module of vLLM binds it: a wheel of vLLM for CUDA finds no platform here.
vllm.platforms._current_platform = vllm.platforms.current_platform = CpuPlatform()

import vllm.model_executor.layers.linear as linear_layers
import vllm.model_executor.layers.vocab_parallel_embedding as vocabulary_layers
import vllm.model_executor.parameter as parameters
from vllm.config import ModelConfig, VllmConfig, set_current_vllm_config
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading

__all__ = ["in_vllm", "linear_layers", "load_model", "on_rank", "vocabulary_layers"]


@contextlib.contextmanager
def in_vllm(folder):
    """Enters vLLM's context: a config, and a group of one process."""
    config = VllmConfig()
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
        yield config


@contextlib.contextmanager
def on_rank(rank, ranks):
    """Makes layers that are created and loaded inside those of one rank of several."""
    with contextlib.ExitStack() as stack:
        for module in (linear_layers, vocabulary_layers, parameters):
            for name, value in (("rank", rank), ("world_size", ranks)):
                stack.enter_context(replaced(module, f"get_tensor_model_parallel_{name}", lambda value=value: value))
        yield


@contextlib.contextmanager
def replaced(module, name, value):
    old = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, old)


def load_model(folder, tensors, dtype="float32", **options):
    """Returns vLLM's model of a folder with config.json, with weights from an iterable of names and tensors."""
    model_config = ModelConfig(
        model=str(folder), tokenizer=str(folder), skip_tokenizer_init=True, dtype=dtype, **options
    )
    config = VllmConfig(model_config=model_config)
    with set_current_vllm_config(config):
        model = initialize_model(vllm_config=config, model_config=model_config)
        loaded = model.load_weights(tensors)
        process_weights_after_loading(model, model_config, torch.device("cpu"))
    return model, loaded
