"""A Whisper model of a megabyte, in the format of the real one. It hears the same sentence in every sound."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from ctranslate2.specs import common_spec, whisper_spec
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from agent.files import transcribe
from agent.models.weights import HubFile, Pinned
from tests.support.hub_server import serving
from tests.support.hub_state import Hub
from tests.support.known_texts import SPOKEN

WIDTH = 64
SPECIAL = ("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|translate|>", "<|transcribe|>", "<|startoflm|>")
SPECIAL += ("<|startofprev|>", "<|nospeech|>", "<|notimestamps|>")
TIMES = tuple(f"<|{step / 50:.2f}|>" for step in range(1501))
BYTES = tuple(sorted(pre_tokenizers.ByteLevel.alphabet()))
NAMES = ("config.json", "tokenizer.json", "vocabulary.json", "model.bin")


@cache
def whisper(says: str) -> dict[str, bytes]:
    """Return the files of a model that hears `says`, by name."""
    with TemporaryDirectory() as folder:
        words = tuple(f"Ġ{word}" for word in says.split())
        _model(words).save(folder)
        _tokenizer(words).save(f"{folder}/tokenizer.json")
        return {name: Path(folder, name).read_bytes() for name in NAMES}


def pinned(files: dict[str, bytes]) -> tuple[Pinned, ...]:
    """Return the pins for these files at org/whisper on the hub."""
    return tuple(
        Pinned(
            file=f"toy-whisper/{name}",
            size=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            hub=HubFile("org/whisper", "rev", name),
        )
        for name, data in files.items()
    )


def paths(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files by their path at the hub."""
    return {f"/org/whisper/resolve/rev/{name}": data for name, data in files.items()}


@contextmanager
def hub_with_whisper() -> Iterator[Hub]:
    """Run a model hub with a toy in Whisper's format, which hears SPOKEN in every speech."""
    files = whisper(SPOKEN)
    with pytest.MonkeyPatch.context() as patch, serving(files=paths(files)) as server:
        patch.setitem(transcribe.TRANSCRIPTION_MODELS, "audio", replace(transcribe.SPEECH, files=pinned(files)))
        patch.setenv("HF_ENDPOINT", server.url)
        yield server


def _tokenizer(words: Sequence[str]) -> Tokenizer:
    known = dict.fromkeys((*BYTES, *words))
    made = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(known)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True) for token in (*SPECIAL, *TIMES)])
    return made


def _model(words: Sequence[str]) -> Any:
    """Build layers that change nothing, and decoder positions that each stand for the token after them."""
    spec = whisper_spec.WhisperSpec(1, 1, 1, 1)
    tokens = [*dict.fromkeys((*BYTES, *words)), *SPECIAL, *TIMES]
    spec.register_vocabulary(tokens)
    _fill(spec.encoder.conv1, (WIDTH, 80, 3))
    _fill(spec.encoder.conv2, (WIDTH, WIDTH, 3))
    spec.encoder.position_encodings.encodings = _small(1500, WIDTH)
    layer: Any
    for layer in (*spec.encoder.layer, *spec.decoder.layer):
        for attention, sizes in ((layer.self_attention, (3, 1)), (getattr(layer, "attention", None), (1, 2, 1))):
            if attention is not None:
                _norm(attention.layer_norm)
                for linear, size in zip(attention.linear, sizes, strict=True):
                    _fill(linear, (size * WIDTH, WIDTH))
        _norm(layer.ffn.layer_norm)
        _fill(layer.ffn.linear_0, (WIDTH, WIDTH))
        _fill(layer.ffn.linear_1, (WIDTH, WIDTH))
    _norm(spec.encoder.layer_norm)
    _norm(spec.decoder.layer_norm)
    said = ["<|0.00|>", *words, "<|2.00|>", "<|endoftext|>"]
    assert len(said) <= WIDTH, "the sentence is too long for this model"
    spec.decoder.embeddings.weight = _small(len(tokens), WIDTH)
    spec.decoder.position_encodings.encodings = np.eye(WIDTH, dtype=np.float32)[
        np.minimum(np.arange(448), len(said) - 1)
    ]
    weight = _small(len(tokens), WIDTH)
    for position, token in enumerate(said):
        weight[tokens.index(token), position] = 3.0
    spec.decoder.projection.weight = weight
    spec.validate()
    return spec


def _fill(spec: Any, shape: tuple[int, ...]) -> None:
    spec.weight = _small(*shape)
    spec.bias = _small(shape[0])


def _norm(spec: common_spec.LayerNormSpec) -> None:
    spec.gamma = np.ones(WIDTH, np.float32)
    spec.beta = np.zeros(WIDTH, np.float32)


def _small(*shape: int) -> Any:
    return np.random.default_rng(7).uniform(-1e-5, 1e-5, shape).astype(np.float32)
