"""A folder with the shape of a Qwen3 model and no weights: vLLM fills it with random ones.

Speed depends on the shape alone. The tokenizer has made-up words, so that each token of an answer is visible text.
"""

import json
from pathlib import Path
from typing import Any

VOCABULARY = 151_936
LETTERS = "aeioubdfgklmnprstv"
"""The letters of the made-up words."""
SPECIAL = {
    "<|endoftext|>": 151_643,
    "<|im_start|>": 151_644,
    "<|im_end|>": 151_645,
    "<tool_call>": 151_657,
    "</tool_call>": 151_658,
    "<think>": 151_667,
    "</think>": 151_668,
}
"""The tokens with which Qwen3 marks messages, calls and reasoning."""
SHAPES: dict[str, dict[str, int]] = {
    "8B": {
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "tiny": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    },
}
"""Sizes by name: those of Qwen3-8B, and small ones with which a processor shows that the bench runs."""
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def words() -> dict[str, int]:
    """Return a vocabulary: the 256 bytes, made-up words of five letters, and the special tokens."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in visible]
    # The signs by which byte-level tokenizers write the bytes.
    tokens = [chr(byte) for byte in visible] + [chr(256 + number) for number in range(len(others))]
    number = 0
    while len(tokens) < SPECIAL["<|endoftext|>"]:
        word, rest = "", number
        for _ in range(5):
            rest, at = divmod(rest, len(LETTERS))
            word += LETTERS[at]
        tokens.append("\u0120" + word)
        number += 1
    return {token: at for at, token in enumerate(tokens)}


def write_model(folder: Path, size: str, *, answer_tokens: int) -> None:
    """Write the description and the tokenizer of a model of this size, whose answers have `answer_tokens` tokens."""
    added = [
        {
            "id": at,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": token.startswith("<|"),
        }
        for token, at in SPECIAL.items()
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    files: dict[str, Any] = {
        "config.json": {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "torch_dtype": "bfloat16",
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 8192,
            "rope_theta": 1_000_000,
            "rms_norm_eps": 1e-6,
            "hidden_act": "silu",
            "attention_bias": False,
            "tie_word_embeddings": False,
            "bos_token_id": SPECIAL["<|endoftext|>"],
            "eos_token_id": SPECIAL["<|im_end|>"],
            **SHAPES[size],
        },
        # vLLM ends an answer here unless a request names another length.
        "generation_config.json": {"max_new_tokens": answer_tokens, "eos_token_id": SPECIAL["<|im_end|>"]},
        "tokenizer.json": {
            "version": "1.0",
            "added_tokens": added,
            "pre_tokenizer": level,
            "post_processor": level,
            "decoder": level,
            "model": {"type": "BPE", "vocab": words(), "merges": []},
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "chat_template": TEMPLATE,
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
