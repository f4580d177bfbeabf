"""Converts prompts to messages, and fetches the pictures in them."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from pydantic import BaseModel
from pydantic_ai.messages import (
    BinaryContent,
    FileUrl,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextContent,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from agent.errors import InputError
from agent.fetch import GUARD, Guard
from agent.files.parts import Image, is_pillow, part_from_path
from agent.messages.openai import from_openai, part_from_openai
from agent.messages.repair import repair
from agent.responses import fix_surrogates
from agent.system.threads import FILES

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

Item: TypeAlias = (
    "str | Path | TextContent | BinaryContent | ImageUrl | Picture | Mapping[str, Any] | BaseModel | ModelMessage"
)
"""One item of a prompt: text, the path of a file, a picture, a sound, or a message or part.

Messages are pydantic-ai's or in OpenAI's format: dicts, or objects such as `ChatCompletionMessage`.
"""

Prompt: TypeAlias = "Item | Sequence[Item]"
"""A prompt: one item or several. Adjacent parts become one user message."""

MAX_BYTES = 20_000_000
FETCH_SECONDS = 20.0
"""The limits for fetching one picture on the web."""

_Kind = Literal["part", "dict", "message"]


def to_messages(prompt: Prompt) -> list[ModelMessage]:
    """Convert a prompt to messages that end with a request, repaired as they are sent.

    Raises `InputError` for an unknown part, and for a prompt that asks nothing: see `check_question`.
    """
    given: Any = prompt
    several = isinstance(prompt, Sequence) and not isinstance(prompt, str | bytes | bytearray)
    items = [_plain(item) for item in (list[Any](given) if several else [given])]
    messages: list[ModelMessage] = []
    for kind, group in groupby(items, _kind):
        match kind:
            case "message":
                messages += cast(list[ModelMessage], list(group))
            case "dict":
                messages += from_openai(list(group))
            case "part":
                content = [_part(item) for item in group]
                alone = content[0] if len(content) == 1 and (not several or len(items) > 1) else None
                messages.append(ModelRequest(parts=[UserPromptPart(alone if isinstance(alone, str) else content)]))
    return check_question(messages)


def check_question(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Return the messages, repaired. Raises `InputError` unless they end with a prompt, or with results of tool calls.

    A prompt of blank text, a system message alone, and results without their calls ask a model nothing.
    """
    if messages and isinstance(messages[-1], ModelResponse):
        raise InputError("the last message must be the user's")
    repaired = repair(messages)
    last = repaired[-1].parts if repaired and isinstance(repaired[-1], ModelRequest) else ()
    prompts = [part.content for part in last if isinstance(part, UserPromptPart)]
    if any(isinstance(part, ToolReturnPart) for part in last) or any(_says_something(one) for one in prompts):
        return repaired
    given = messages[-1].parts if messages else ()
    if any(isinstance(part, ToolReturnPart) for part in given):
        raise InputError("the results of tools need the assistant's message with their calls before them in the list")
    if not prompts and any(isinstance(part, SystemPromptPart) for part in given):
        raise InputError("a system message alone asks nothing: a message of the user must follow it")
    raise InputError("the message is empty")


def _says_something(content: str | Sequence[UserContent]) -> bool:
    """Return True unless all parts of a prompt are blank text."""
    parts: Sequence[UserContent] = [content] if isinstance(content, str) else content
    texts = [part.content if isinstance(part, TextContent) else part for part in parts]
    return any(not isinstance(text, str) or text.strip() for text in texts)


async def fetch_urls(messages: Sequence[ModelMessage], guard: Guard = GUARD) -> list[ModelMessage]:
    """Return the messages with all pictures on the web fetched concurrently. No model server ever fetches a URL.

    Raises `InputError` with the guard's sentence if a URL is refused, fails or is not a picture.
    """
    urls = {item.url: item for message in messages for item in prompt_parts(message) if isinstance(item, FileUrl)}
    if odd := next((item for item in urls.values() if not isinstance(item, ImageUrl)), None):
        raise InputError(f"of what lies on the web only pictures are fetched, not {type(odd).__name__!r}")
    try:
        async with asyncio.TaskGroup() as group:
            tasks = {url: group.create_task(_fetch(url, guard)) for url in urls}
    except* InputError as failures:
        raise failures.exceptions[0] from failures
    found = {url: task.result() for url, task in tasks.items()}
    return [_replace_urls(message, found) for message in messages] if found else list(messages)


async def _fetch(url: str, guard: Guard) -> BinaryContent:
    got = await guard.fetch(url, kinds=("image/*",), max_bytes=MAX_BYTES, seconds=FETCH_SECONDS)
    return await FILES.run(Image.from_bytes, got.data)


def prompt_parts(message: ModelMessage) -> Iterator[UserContent]:
    """Yield the parts of the user's prompts in a message, except a prompt that is only text."""
    for part in message.parts:
        if isinstance(part, UserPromptPart) and not isinstance(part.content, str):
            yield from part.content


def _replace_urls(message: ModelMessage, found: Mapping[str, BinaryContent]) -> ModelMessage:
    """Return the message with bytes instead of URLs."""

    def with_bytes(item: UserContent) -> UserContent:
        if not isinstance(item, ImageUrl):
            return item
        return replace(found[item.url], vendor_metadata=item.vendor_metadata)

    if not isinstance(message, ModelRequest) or not any(isinstance(item, ImageUrl) for item in prompt_parts(message)):
        return message
    parts = [
        replace(part, content=[with_bytes(item) for item in part.content])
        if isinstance(part, UserPromptPart) and not isinstance(part.content, str)
        else part
        for part in message.parts
    ]
    return replace(message, parts=parts)


def _plain(item: Any) -> Any:
    """Return an object of OpenAI's client as a dict, and any other item unchanged."""
    if isinstance(item, BaseModel) and hasattr(item, "role"):
        return item.model_dump(exclude_none=True)
    return item


def _kind(item: object) -> _Kind:
    if isinstance(item, ModelRequest | ModelResponse):
        return "message"
    return "dict" if isinstance(item, Mapping) and "role" in item else "part"


def _part(item: Any) -> UserContent:
    if isinstance(item, str):
        return fix_surrogates(item)
    if isinstance(item, TextContent | BinaryContent | ImageUrl):
        return item
    if isinstance(item, Path):
        return part_from_path(item)
    if is_pillow(item):
        return Image.from_pillow(item)
    if isinstance(item, Mapping):
        return part_from_openai(cast(Mapping[str, Any], item))
    hint = "; Image.from_bytes and Audio.from_bytes make parts of bytes" if isinstance(item, bytes) else ""
    if hasattr(item, "to_input_list"):
        hint = "; pass context=result.context, or *result.to_input_list() in the prompt"
    raise InputError(f"a message may hold text, pictures and sound, not {type(item).__name__!r}{hint}")
