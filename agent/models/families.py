"""Derives the capabilities of a checkpoint from its name. Knows no provider and does not use the network."""

import re
from dataclasses import dataclass, replace

from agent.errors import UnknownModel
from agent.i18n.text import _

VARIANT = re.compile(r"(?::[\w.-]+|[-@]\d{8}|-\d{4}-\d\d-\d\d|-latest)$")
"""The suffix of a dated snapshot, or of a server that the Hugging Face router shall choose."""


def key_of(name: str) -> str:
    """Return the name for comparison: without case and without the `models/` prefix in Google's own lists."""
    return name.casefold().removeprefix("models/")


def short_name(name: str) -> str:
    """Return the name without the organisation before it."""
    return name.rstrip("/").rsplit("/", 1)[-1]


LONGEST_NAME = 200
"""The most characters of a model's name, because names from outside are searched, compared, logged and shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The capabilities that a checkpoint's name implies. vLLM's /v1/models does not list them.

    `is_known` is False for a name that implies nothing. `tools`: the model was trained to call tools, or nobody knows.
    `tool_parser` and `reasoning_parser` are the values that `vllm serve` needs, None if it needs none.
    `always_reasons`: the chat template cannot turn reasoning off. `speaks`: it can write sound, too.
    """

    is_known: bool = True
    image: bool = False
    audio: bool = False
    video: bool = False
    speaks: bool = False
    tools: bool = True
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    always_reasons: bool = False


def family(name: str) -> Family:
    """Return the family of the checkpoint `name`: a hub id, a folder, or a name with a tag such as `qwen3:8b`."""
    short = re.sub(r"(?<=\d)p(?=\d)", ".", name.rstrip("/").rsplit("/", 1)[-1].lower())  # Fireworks writes v3p1
    if (qwen3 := re.match(r"qwen3(\.\d+)?(?:[-_:]|vl|$)", short)) is not None:
        return _qwen3(short, is_newer=qwen3[1] is not None)
    image, audio, video = (pattern.search(short) is not None for pattern in (_SEES, _HEARS, _WATCHES))
    found = next((one for pattern, one in _FAMILIES if pattern.search(short)), None)
    if found is None:
        return Family(is_known=image, image=image, audio=audio, video=video)
    return replace(found, image=found.image or image, audio=found.audio or audio, video=video)


def _qwen3(short: str, *, is_newer: bool) -> Family:
    """Return the family of a Qwen3. From 3.5 on, they take images from the start, and write tool calls in XML."""
    coder = "coder" in short
    chats = can_chat(short) and not any(word in short for word in ("base", "captioner"))  # else no tools and reasoning
    thinks = chats and not coder and ("instruct" not in short or "thinking" in short)
    sees = _SEES.search(short) is not None or (is_newer and chats)
    return Family(
        image=sees,
        video=sees,
        audio=_HEARS.search(short) is not None,
        speaks="omni" in short and chats and not thinks,
        tools=chats,
        tool_parser=("qwen3_coder" if coder or is_newer else "hermes") if chats else None,
        reasoning_parser="qwen3" if thinks else None,
        always_reasons=thinks and "thinking" in short,
    )


_SEES = re.compile(
    r"(?:^|[-_.:])vl(?:[-_.:\d]|$)|omni|(?<![a-z])vision|multimodal|qwen[\d.]{1,4}vl|llava|pixtral|moondream|internvl|minicpm-?[vo]"
    r"|smolvlm|glm-?4\.\dv|gemma-?3(?!n|[-_:](?:1b|270m))|llama-?4|mistral-small-?(?:3\.[12]|250[36])|magistral-\w{1,9}-2509"
)
"""Names of models that take images."""
_WATCHES = re.compile(
    r"qwen2[\d.]{0,3}-?(?:vl|omni)|internvl-?[23]|minicpm-?[vo]|smolvlm2|llava-(?:next-video|onevision)"
)
"""Names of models that take videos, besides those of Qwen3."""
_HEARS = re.compile(r"omni|phi-?4-multimodal|qwen2-audio|voxtral")
"""Names of models that take audio."""
_R1 = Family(reasoning_parser="deepseek_r1", always_reasons=True)
_FAMILIES: tuple[tuple[re.Pattern[str], Family], ...] = tuple(
    (re.compile(pattern), known)
    for pattern, known in (
        (r"gpt-?oss", Family(tool_parser="openai", reasoning_parser="openai_gptoss", always_reasons=True)),
        (r"deepseek-?(?:r1|reasoner)", replace(_R1, tool_parser="deepseek_v3")),
        (r"deepseek-?v3\.[12]", Family(tool_parser="deepseek_v31")),
        (r"deepseek-?(?:v3(?![.\d])|chat)", Family(tool_parser="deepseek_v3")),
        (r"qwq", replace(_R1, tool_parser="hermes")),
        (r"^qwen2", Family(tool_parser="hermes")),
        (r"llama-?v?3\.[123]", Family(tool_parser="llama3_json")),
        (r"llama-?v?4", Family(image=True, tool_parser="llama4_pythonic")),
        (r"magistral", Family(tool_parser="mistral", reasoning_parser="mistral", always_reasons=True)),
        (
            r"mistral-(?:7b|nemo)|mistral-small(?:-?(?:24b|3\.[12]|250[136])|:)|^mistral(?::|$)|mixtral|pixtral|codestral",
            Family(tool_parser="mistral"),
        ),
        (r"gemma-?[23](?!n)", Family()),
        (r"glm-?4\.[156]", Family(tool_parser="glm45", reasoning_parser="glm45")),
        (
            r"kimi-k2(?![.\d]).{0,20}thinking",
            Family(tool_parser="kimi_k2", reasoning_parser="kimi_k2", always_reasons=True),
        ),
        (r"kimi-k2(?![.\d])", Family(tool_parser="kimi_k2")),
        (r"phi-?4-mini(?!-(?:flash|reasoning))", Family(tool_parser="phi4_mini_json")),
        (r"phi-?[34](?!.{0,9}-reasoning)", Family()),
        (r"command-(?:a|r)(?!-reasoning)", Family()),
        (r"granite-?3", Family(tool_parser="granite")),
        (r"granite-?4", Family()),
    )
)
"""Lists what the names of open weights imply. The first match counts; versions that do not exist yet imply nothing."""


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


_DRAWS = re.compile(r"(?:^|[-_./:])image(?:$|[-_.:])", re.IGNORECASE)


def draws(name: str) -> bool:
    """Return True for the name of a model that chats and answers with pictures, such as gemini-3-pro-image."""
    return _DRAWS.search(short_name(name)) is not None


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
