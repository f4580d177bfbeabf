"""What people pass in, as messages."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    UserContent,
    UserPromptPart,
)

from agent.errors import InputError
from agent.openai_format import from_openai, part_from_openai
from agent.parts import Image, is_pillow
from agent.responses import whole

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

Item: TypeAlias = "str | BinaryContent | ImageUrl | Picture | Mapping[str, Any] | ModelMessage"
"""One thing of a prompt: text, a picture or a sound, an OpenAI-style part or message, a message of pydantic-ai's."""

Prompt: TypeAlias = "Item | Sequence[Item]"
"""What may be asked: one item, or several. Parts that stand side by side are one message of the user's."""

_Kind = Literal["part", "dict", "message"]


def to_messages(prompt: Prompt) -> list[ModelMessage]:
    """A prompt as messages that end with a request.

    Raises `InputError` for an empty prompt, an unknown part, or a list that ends with the assistant.
    """
    given: Any = prompt
    several = isinstance(prompt, Sequence) and not isinstance(prompt, str | bytes | bytearray)
    items: list[Any] = list(given) if several else [given]
    if all(isinstance(item, str) and not item.strip() for item in items):
        raise InputError("the message is empty")
    messages: list[ModelMessage] = []
    for kind, group in groupby(items, _kind):
        match kind:
            case "message":
                messages += cast(list[ModelMessage], list(group))
            case "dict":
                messages += from_openai(list(group))
            case "part":
                content = [_part(item) for item in group]
                alone = content[0] if not several else None
                messages.append(ModelRequest(parts=[UserPromptPart(alone if isinstance(alone, str) else content)]))
    if not isinstance(messages[-1], ModelRequest):
        raise InputError("the last message must be the user's")
    return messages


def _kind(item: object) -> _Kind:
    if isinstance(item, ModelRequest | ModelResponse):
        return "message"
    return "dict" if isinstance(item, Mapping) and "role" in item else "part"


def _part(item: Any) -> UserContent:
    if isinstance(item, str):
        return whole(item)
    if isinstance(item, BinaryContent | ImageUrl):
        return item
    if is_pillow(item):
        return Image.from_pillow(item)
    if isinstance(item, Mapping):
        return part_from_openai(cast(Mapping[str, Any], item))
    hint = "; Image.from_bytes and Audio.from_bytes make parts of bytes" if isinstance(item, bytes) else ""
    raise InputError(f"a message may hold text, pictures and sound, not {type(item).__name__!r}{hint}")
