"""Derives the capabilities of a checkpoint from its name. Knows no provider and does not use the network."""

import re
from dataclasses import dataclass

from agent.errors import UnknownModel
from agent.i18n import _

LONGEST_NAME = 200
"""The most characters of a model's name, because names from outside are searched, compared, logged and shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The capabilities that a checkpoint's name implies. vLLM's /v1/models does not list them.

    `tool_parser` and `reasoning_parser` are the values that `vllm serve` needs, None if it needs none.
    `always_reasons`: the chat template cannot turn reasoning off.
    """

    image: bool = False
    audio: bool = False
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    always_reasons: bool = False


def family(name: str) -> Family:
    """Return the family of the checkpoint `name` (a hub id or a folder). Unknown names get text only."""
    short = name.rstrip("/").rsplit("/", 1)[-1].lower()
    omni = "omni" in short
    image = omni or re.search(r"(?:^|[-_.])vl(?:[-_.]|$)|qwen3vl", short) is not None
    qwen3 = re.match(r"qwen3(\.\d+)?(?:[-_]|vl|$)", short)
    if qwen3 is None:
        return Family(image=image, audio=omni, tool_parser="hermes" if short.startswith("qwen2") else None)
    coder = "coder" in short
    chats = can_chat(name) and not any(word in short for word in ("base", "captioner"))  # else no tools and reasoning
    newer = qwen3[1] is not None  # 3.5 and later: images from the start, tool calls in XML
    thinks = chats and not coder and ("instruct" not in short or "thinking" in short)
    return Family(
        image=image or (newer and chats),
        audio=omni,
        tool_parser=("qwen3_coder" if coder or newer else "hermes") if chats else None,
        reasoning_parser="qwen3" if thinks else None,
        always_reasons=thinks and "thinking" in short,
    )


_OTHER_WORDS = (
    *("embed", "embedding", "embeddings", "bge", "e5", "gte", "minilm", "rerank", "reranker", "colbert"),
    *("splade", "bert", "roberta", "mpnet", "parakeet", "canary", "musicgen", "music"),
    *("whisper", "asr", "tts", "stt", "transcribe", "transcription", "speech", "voice", "kokoro", "realtime", "bark"),
    *("dall", "image", "images", "diffusion", "sd", "sdxl", "sd3", "flux", "video", "sora", "imagen", "veo"),
    *("clip", "siglip", "moderation", "guard", "ocr", "davinci", "babbage"),
)
_OTHER_NAME = re.compile(rf"(?:^|[-_./:\d])(?:{'|'.join(_OTHER_WORDS)})(?:$|[-_./:\d])|embed|rerank|^(?:bge|e5|gte)\b")
"""Names of models that make vectors, scores, speech or images, or read sound, and do not chat."""


def can_chat(name: str) -> bool:
    """Return False if the name is one of a model that does not chat, such as one for embeddings, speech or images."""
    return _OTHER_NAME.search(name.rstrip("/").rsplit("/", 1)[-1].lower()) is None


def billions(name: str) -> float | None:
    """Return how many billion parameters a model's name says that it has, all experts together, or None."""
    sizes = re.findall(
        r"(?<![a-z0-9.])(?:([0-9]{1,9})x)?([0-9]{1,9}(?:[._][0-9]{1,9})?)([bm])(?![a-z0-9])", name.lower()
    )
    counts = [
        int(experts or 1) * float(size.replace("_", ".")) * (1 if unit == "b" else 1e-3)
        for experts, size, unit in sizes
    ]
    return max(counts, default=None)


def check_name(name: str) -> None:
    """Raise `UnknownModel` if the name of a model has more than `LONGEST_NAME` characters."""
    if len(name) > LONGEST_NAME:
        raise UnknownModel(
            _(
                "The name of a model has at most {most} characters; this one has {count:,}.",
                most=LONGEST_NAME,
                count=len(name),
            )
        )
