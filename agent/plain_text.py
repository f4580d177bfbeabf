"""Finds the messages that are one text and nothing else.

Most messages are, and each request looks at all of them several times. Whoever looks for something rarer, such as files
or tool calls, can pass over these.
"""

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar, cast

from pydantic_ai.messages import BinaryContent, DocumentUrl, ImageUrl, ModelMessage, TextPart, UserPromptPart

from agent.system.threads import PREPARING

FEW_PARTS = 200
"""Parts of messages that are looked at without a thread, in about a millisecond."""

P = ParamSpec("P")
T = TypeVar("T")


def plain_text(message: ModelMessage) -> str | None:
    """Return the text of a prompt or an answer that is one text and nothing else, or None for any other message."""
    if len(message.parts) != 1:
        return None
    part = message.parts[0]
    # Not `isinstance`: the union of all parts makes it slow.
    if type(part) is not UserPromptPart and type(part) is not TextPart:
        return None
    return part.content if type(part.content) is str else None


def is_picture(item: object) -> bool:
    """Return True if this item of a content is a picture."""
    return isinstance(item, ImageUrl) or (isinstance(item, BinaryContent) and item.is_image)


def is_video(item: object) -> bool:
    """Return True if this item of a content is a video."""
    return isinstance(item, BinaryContent | DocumentUrl) and item.media_type.startswith("video/")


async def off_loop(messages: Sequence[ModelMessage], work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of `work` on these messages. A thread does it if they are many, so that others don't wait."""
    return await PREPARING.run(work, *args, **kwargs) if are_many(messages) else work(*args, **kwargs)


def are_many(messages: Sequence[ModelMessage]) -> bool:
    """Return True if it takes long to look at all these messages."""
    count = 0
    for message in messages:
        count += 1 + len(message.parts)
        if len(message.parts) == 1:
            content: object = getattr(message.parts[0], "content", None)
            count += len(cast(Sequence[object], content)) if isinstance(content, list | tuple) else 0
        if count > FEW_PARTS:
            return True
    return False
