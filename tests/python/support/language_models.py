"""Makes tiny language models with random weights: folders of a Llama and a tokenizer, as transformers reads them."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "far", "away", ".", "in", "sun", "red", "ball")
POSITIONS = 64


def tokenizer():
    """Return a tokenizer of bytes and a few words that puts <s> before a text."""
    names = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = []
    for word in WORDS:
        for end in range(2, len(word) + 1):
            if word[:end] not in names:
                names.append(word[:end])
                merges.append((word[: end - 1], word[end - 1]))
    made = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")


def llama(seed=0, **options):
    """Return a Llama of two layers whose logits are far from equal."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "max_position_embeddings": POSITIONS}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": len(tokenizer())}
    config = LlamaConfig(**{"bos_token_id": 0, "eos_token_id": 1, "initializer_range": 0.2} | sizes | options)
    return LlamaForCausalLM(config).float().eval()


def write(folder, seed=0, **options):
    """Write a folder with a model and a tokenizer, and return it."""
    llama(seed, **options).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
