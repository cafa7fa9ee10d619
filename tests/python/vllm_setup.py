"""vLLM's own layers on the CPU: its platform, a group of one process, and ranks that tests choose."""

import contextlib
import importlib

import torch
import vllm.platforms
from vllm.platforms.cpu import CpuPlatform

# Before any module of vLLM binds it: a wheel of vLLM for CUDA finds no platform here.
vllm.platforms._current_platform = vllm.platforms.current_platform = CpuPlatform()

linear_layers = importlib.import_module("vllm.model_executor.layers.linear")
vocabulary_layers = importlib.import_module("vllm.model_executor.layers.vocab_parallel_embedding")
_parameters = importlib.import_module("vllm.model_executor.parameter")
_config = importlib.import_module("vllm.config")
_distributed = importlib.import_module("vllm.distributed")
_loader = importlib.import_module("vllm.model_executor.model_loader.utils")


@contextlib.contextmanager
def in_vllm(folder):
    """Enters vLLM's context: a config, and a group of one process."""
    config = _config.VllmConfig()
    with _config.set_current_vllm_config(config):
        _distributed.init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
        _distributed.ensure_model_parallel_initialized(1, 1)
        yield config


@contextlib.contextmanager
def on_rank(rank, ranks):
    """Makes layers that are created and loaded inside those of one rank of several."""
    with contextlib.ExitStack() as stack:
        for module in (linear_layers, vocabulary_layers, _parameters):
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
    model_config = _config.ModelConfig(
        model=str(folder), tokenizer=str(folder), skip_tokenizer_init=True, dtype=dtype, **options
    )
    config = _config.VllmConfig(model_config=model_config)
    with _config.set_current_vllm_config(config):
        model = _loader.initialize_model(vllm_config=config, model_config=model_config)
        loaded = model.load_weights(tensors)
        _loader.process_weights_after_loading(model, model_config, torch.device("cpu"))
    return model, loaded
