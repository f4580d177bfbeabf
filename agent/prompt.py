"""What people pass in, as messages."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

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
from agent.openai_format import from_openai
from agent.responses import whole

Prompt = str | Sequence[UserContent] | Sequence[Mapping[str, Any]] | Sequence[ModelMessage]


def to_messages(prompt: Prompt) -> list[ModelMessage]:
    """A string, a list of parts, OpenAI-format dicts or messages, as messages that end with a request.

    Raises `InputError` for an empty prompt, an unknown part, or a list that ends with the assistant.
    """
    if isinstance(prompt, str):
        if not prompt.strip():
            raise InputError("the message is empty")
        return [ModelRequest(parts=[UserPromptPart(whole(prompt))])]
    items: list[Any] = list(prompt)
    if not items:
        raise InputError("the message is empty")
    if all(isinstance(item, ModelRequest | ModelResponse) for item in items):
        messages: list[ModelMessage] = cast(list[ModelMessage], items)
    elif all(isinstance(item, Mapping) and "role" in item for item in items):
        messages = from_openai(cast(list[Mapping[str, Any]], items))
    elif all(isinstance(item, str | BinaryContent | ImageUrl) for item in items):
        content = [whole(item) if isinstance(item, str) else item for item in items]
        messages = [ModelRequest(parts=[UserPromptPart(cast(list[UserContent], content))])]
    else:
        odd = next(item for item in items if not isinstance(item, str | BinaryContent | ImageUrl))
        raise InputError(f"a message may hold text, images and sound, not {type(odd).__name__!r}")
    if not isinstance(messages[-1], ModelRequest):
        raise InputError("the last message must be the user's")
    return messages
