"""Loads and runs a model with each library: one small class for each implementation."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np


class Implementation(ABC):
    """Generates greedily from token ids. Every class has a process of its own."""

    name = ""
    needs: tuple[str, ...] = ()
    """Modules that must be installed."""
    note = ""

    def __init__(self, source: Path, work: Path, threads: int) -> None:
        self.source = source
        """Folder of the model in bfloat16."""
        self.folder = work / self.name
        """The files that :meth:`prepare` writes."""
        self.threads = threads

    @classmethod
    def missing(cls) -> str:
        """Return what is not installed; empty if nothing."""
        return ", ".join(name for name in cls.needs if importlib.util.find_spec(name) is None)

    def prepare(self) -> None:  # noqa: B027 - not all need it
        """Convert the source once; not measured. Writes to :attr:`folder`."""

    def start(self) -> None:  # noqa: B027 - not all need it
        """Import what the implementation needs and set its threads."""

    @abstractmethod
    def load(self) -> None:
        """Open the model; measured."""

    @abstractmethod
    def generate(self, ids: list[int], count: int) -> list[float]:
        """Generate ``count`` tokens and return the time of each from the call's start; the first is the prefill."""

    def stored_bytes(self) -> int:
        """Return the bytes of the files that are opened."""
        folder = self.folder if self.folder.exists() else self.source
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class Transformers(Implementation):
    """Generates with transformers' ``generate``."""

    needs: tuple[str, ...] = ("torch", "transformers")
    dtype = "bfloat16"
    model: Any

    def start(self) -> None:
        import torch
        import transformers

        torch.set_num_threads(self.threads)
        transformers.utils.logging.set_verbosity_error()

    def open(self, folder: Path, **options: Any) -> Any:
        """Return the model of a folder."""
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, self.dtype), **options)
        model.generation_config.eos_token_id = None
        return model.eval()

    def load(self) -> None:
        self.model = self.open(self.source)

    def generate(self, ids: list[int], count: int) -> list[float]:
        import torch
        from transformers import StoppingCriteria, StoppingCriteriaList

        times: list[float] = []
        started = time.perf_counter()

        class Clock(StoppingCriteria):
            def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
                times.append(time.perf_counter() - started)
                return torch.zeros(input_ids.shape[0], dtype=torch.bool)

        self.model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
            stopping_criteria=StoppingCriteriaList([Clock()]),
        )
        return times


class TorchBf16(Transformers):
    name = "torch-bf16"


class TorchDynamicInt8(Transformers):
    name = "torch-dynamic-int8"
    dtype = "float32"

    def load(self) -> None:
        import torch

        model = self.open(self.source)
        self.model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)


class TorchAo(Transformers):
    name = "torchao-int4"
    needs = ("torch", "transformers", "torchao")
    note = "weights of 4 bits in groups of 32, torch's kernel for the CPU (a prototype of torchao 0.18)"

    def load(self) -> None:
        import torchao
        from torchao.prototype.quantization.int4.inference_workflow import PrototypeInt4WeightOnlyConfig

        self.model = self.open(self.source)
        torchao.quantize_(self.model, PrototypeInt4WeightOnlyConfig(group_size=32))


class Qcore(Transformers):
    """Opens a folder that QcoreConfig(bits=4) made, unfused."""

    name = "qcore-fp32"
    needs = ("torch", "transformers", "qcore")
    note = "4 bits in blocks of 32, compute int8, host float32"
    dtype = "float32"
    fused = False
    kv_cache: str | None = None

    def __init__(self, source: Path, work: Path, threads: int) -> None:
        super().__init__(source, work, threads)
        self.folder = work / "qcore-4bit"

    def prepare(self) -> None:
        from qcore.transformers import QcoreConfig

        self.dtype = "bfloat16"
        self.open(self.source, quantization_config=QcoreConfig(bits=4, block_size=32)).save_pretrained(self.folder)

    def start(self) -> None:
        import qcore.transformers

        super().start()
        qcore.set_num_threads(self.threads)

    def load(self) -> None:
        from qcore.transformers import fuse_

        self.model = self.open(self.folder)
        if self.fused:
            fuse_(self.model, kv_cache=self.kv_cache)


class QcoreBf16(Qcore):
    name = "qcore-bf16"
    note = "4 bits in blocks of 32, compute int8, host bfloat16"
    dtype = "bfloat16"


class QcoreFused(Qcore):
    name = "qcore-fused-fp32"
    note = "fuse_, host float32"
    fused = True


class QcoreFusedBf16(QcoreFused):
    name = "qcore-fused-bf16"
    note = "fuse_, host bfloat16"
    dtype = "bfloat16"


class QcoreFusedInt8Cache(QcoreFused):
    name = "qcore-fused-int8-cache"
    note = "fuse_(kv_cache='int8'), host float32"
    kv_cache = "int8"


class LlamaCpp(Implementation):
    """Calls llama.cpp's C interface, as its Python package binds it."""

    name = "llama.cpp-q4_0"
    needs = ("llama_cpp", "gguf", "torch")
    note = "Q4_0 with a Q4_0 head and embedding, built from llama-cpp-python"
    _NAMES = (
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers", "blk"),
    )

    def prepare(self) -> None:
        import gguf
        from safetensors import safe_open

        config = json.loads((self.source / "config.json").read_text())
        self.folder.mkdir()
        writer = gguf.GGUFWriter(self.folder / "model.gguf", config["model_type"])
        heads = config["num_attention_heads"]
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(config["hidden_size"])
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count(heads)
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_rope_freq_base(config["rope_theta"])
        writer.add_rope_dimension_count(config.get("head_dim", config["hidden_size"] // heads))
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_vocab_size(config["vocab_size"])
        writer.add_tokenizer_model("no_vocab")
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
        for path in sorted(self.source.glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                for name in file.keys():  # noqa: SIM118, the file is no dictionary
                    value = file.get_tensor(name).float().numpy()
                    if config["model_type"] == "llama" and ("q_proj" in name or "k_proj" in name):
                        count = heads if "q_proj" in name else config["num_key_value_heads"]
                        value = value.reshape(count, 2, -1, value.shape[-1]).swapaxes(1, 2).reshape(value.shape)
                    for ours, theirs in self._NAMES:
                        name = name.replace(ours, theirs)
                    if value.ndim == 2:
                        kind = gguf.GGMLQuantizationType.Q4_0
                        writer.add_tensor(name, gguf.quants.quantize(value, kind), raw_dtype=kind)
                    else:
                        writer.add_tensor(name, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def start(self) -> None:
        import llama_cpp

        self.api = llama_cpp
        llama_cpp.llama_backend_init()

    def load(self) -> None:
        api = self.api
        model = api.llama_model_load_from_file(
            str(self.folder / "model.gguf").encode(), api.llama_model_default_params()
        )
        options = api.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = 2048, 512, 512
        options.n_threads = options.n_threads_batch = self.threads
        self.context = api.llama_init_from_model(model, options)
        self.vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))

    def generate(self, ids: list[int], count: int) -> list[float]:
        api, times, tokens = self.api, [], ids
        api.llama_memory_clear(api.llama_get_memory(self.context), True)
        started = time.perf_counter()
        for _ in range(count):
            for begin in range(0, len(tokens), 512):
                part = tokens[begin : begin + 512]
                memory = (api.llama_token * len(part))(*part)  # the batch points to it
                if api.llama_decode(self.context, api.llama_batch_get_one(memory, len(part))):
                    raise RuntimeError("llama_decode failed")
            logits = np.ctypeslib.as_array(api.llama_get_logits_ith(self.context, -1), (self.vocabulary,))
            tokens = [int(logits.argmax())]
            times.append(time.perf_counter() - started)
        return times


class OpenVino(Implementation):
    """Runs the stateful model that optimum-intel exports, as openvino-genai does, without its tokenizer.

    EXPORT_PYTHON names a Python with optimum-intel and a version of transformers that it knows, by default this one.
    """

    name = "openvino-int4"
    needs = ("openvino",)
    note = "int4 symmetric, groups of 32, ratio 1; its own choice of cache (u8)"

    def prepare(self) -> None:
        python = os.environ.get("EXPORT_PYTHON", sys.executable)
        command = [python, "-m", "optimum.commands.optimum_cli", "export", "openvino", "--model", str(self.source)]
        options = ["--task", "text-generation-with-past", "--weight-format", "int4", "--sym", "--group-size", "32"]
        subprocess.run([*command, *options, "--ratio", "1.0", str(self.folder)], check=True, stdout=sys.stderr)

    def start(self) -> None:
        import openvino

        self.core = openvino.Core()

    def load(self) -> None:
        options = {"INFERENCE_NUM_THREADS": self.threads, "PERFORMANCE_HINT": "LATENCY"}
        self.request = self.core.compile_model(
            self.folder / "openvino_model.xml", "CPU", options
        ).create_infer_request()
        self.inputs = {name for port in self.request.model_inputs for name in port.names}

    def generate(self, ids: list[int], count: int) -> list[float]:
        self.request.reset_state()
        tokens, past, times = np.array([ids]), 0, []
        started = time.perf_counter()
        for _ in range(count):
            end = past + tokens.shape[1]
            feed = {
                "input_ids": tokens,
                "attention_mask": np.ones((1, end), np.int64),
                "position_ids": np.arange(past, end)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
            result = self.request.infer({name: value for name, value in feed.items() if name in self.inputs})
            tokens, past = np.array([[int(result["logits"][0, -1].argmax())]]), end
            times.append(time.perf_counter() - started)
        return times


class OnnxRuntimeGenAi(Implementation):
    """Runs onnxruntime-genai on the model that its own builder makes."""

    name = "onnxruntime-genai-int4"
    needs = ("onnxruntime_genai", "onnx_ir", "torch")
    note = "int4 in blocks of 32, accuracy level 4 (int8 activations)"

    def prepare(self) -> None:
        options = ["int4_block_size=32", "int4_accuracy_level=4"]
        builder = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
        arguments = ["-i", str(self.source), "-o", str(self.folder), "-p", "int4", "-e", "cpu"]
        cache = ["-c", str(self.folder) + "-cache"]
        subprocess.run([*builder, *arguments, *cache, "--extra_options", *options], check=True, stdout=sys.stderr)
        path = self.folder / "genai_config.json"
        config = json.loads(path.read_text())
        config["model"]["decoder"]["session_options"]["intra_op_num_threads"] = self.threads
        path.write_text(json.dumps(config))

    def start(self) -> None:
        import onnxruntime_genai

        self.api = onnxruntime_genai

    def load(self) -> None:
        self.model = self.api.Model(str(self.folder))

    def generate(self, ids: list[int], count: int) -> list[float]:
        options = self.api.GeneratorParams(self.model)
        options.set_search_options(max_length=len(ids) + count + 1, do_sample=False)
        times: list[float] = []
        started = time.perf_counter()
        generator = self.api.Generator(self.model, options)
        generator.append_tokens(np.array([ids], np.int32))
        for _ in range(count):
            generator.generate_next_token()
            times.append(time.perf_counter() - started)
        return times


ALL: dict[str, type[Implementation]] = {
    each.name: each
    for each in (
        QcoreFused,
        QcoreFusedBf16,
        QcoreFusedInt8Cache,
        Qcore,
        QcoreBf16,
        LlamaCpp,
        OpenVino,
        OnnxRuntimeGenAi,
        TorchAo,
        TorchDynamicInt8,
        TorchBf16,
    )
}
