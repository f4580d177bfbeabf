"""Replaces the bytes of files in messages by references to stored files, and references by bytes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ToolReturnPart,
    UserPromptPart,
)

from agent.errors import NotFound
from agent.files.store import ROUTE, UNKNOWN, MediaStore, id_of, is_id
from agent.history import Entry
from agent.plain_text import off_loop, plain_text
from agent.responses import Response

DELETED = "(An attachment that was deleted.)"
Url = ImageUrl | AudioUrl | DocumentUrl


async def with_references(media: MediaStore, owner: str, message: ModelMessage, reference: str) -> ModelMessage:
    """Return the message with references instead of bytes, which are stored first. See `MediaStore.add`."""
    if isinstance(message, ModelResponse):
        new_parts = [await _with_file_reference(media, owner, part, reference) for part in message.parts]
        return message if new_parts == list(message.parts) else replace(message, parts=new_parts)
    parts: list[ModelRequestPart] = []
    for part in message.parts:
        items = _items(part)
        new = [await _reference(media, owner, item, reference) for item in items]
        parts.append(_with_items(part, new) if new != items else part)
    return message if parts == list(message.parts) else replace(message, parts=parts)


async def with_urls(media: MediaStore, owner: str, response: Response, reference: str) -> Response:
    """Return the response with references instead of the bytes of its files, which are stored first."""
    content: Any = response.content
    if not isinstance(content, Mapping) or "files" not in content:
        return response
    given = cast(Mapping[str, Any], content)
    files = [await _reference(media, owner, item, reference) for item in given["files"]]
    return replace(response, content={**given, "files": files})


async def with_data(media: MediaStore, owner: str, messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Return the messages with bytes instead of references. A sentence replaces each deleted file."""
    out = list(messages)
    for number in await off_loop(messages, lambda: [n for n, one in enumerate(out) if _has_reference(one)]):
        out[number] = await _with_data(media, owner, out[number])
    return out


def reference_of(conversation: str, entry: str = "") -> str:
    """Return the name of the reference of an entry, or that of the conversation's event log.

    A copied conversation has the same entries. Its references must differ, because it is deleted for itself.
    """
    return f"{conversation}/{entry}"


def conversation_of(reference: str) -> str:
    """Return the conversation of a reference."""
    return reference.partition("/")[0]


def references_in(conversation: str, entries: Iterable[Entry]) -> dict[str, set[str]]:
    """Return the references of these entries to each file."""
    found: dict[str, set[str]] = {}
    for entry in entries:
        for id_ in files_named_in([entry.message]):
            found.setdefault(id_, set()).add(reference_of(conversation, entry.id))
    return found


def files_named_in(messages: Iterable[ModelMessage]) -> set[str]:
    """Return the ids of the stored files that these messages refer to."""
    ids: set[str] = set()
    for message in messages:
        if isinstance(message, ModelResponse):
            ids |= {part.content.identifier for part in message.parts if isinstance(part, FilePart)}
            continue
        items = [item for part in message.parts for item in _items(part)]
        ids |= {item.url.removeprefix(ROUTE) for item in items if isinstance(item, Url)}
    return {id_ for id_ in ids if is_id(id_)}


def new_files(owner: str, message: ModelMessage) -> set[str]:
    """Return the ids that `with_references` gives to the bytes in this message."""
    if isinstance(message, ModelResponse):
        contents = [part.content for part in message.parts if isinstance(part, FilePart) and part.content.data]
    else:
        contents = [item for part in message.parts for item in _items(part) if isinstance(item, BinaryContent)]
    return {id_of(owner, content) for content in contents}


def _has_reference(message: ModelMessage) -> bool:
    """Return True if the message can have a reference. Most have none, and each request looks at all of them."""
    if plain_text(message) is not None:
        return False
    if isinstance(message, ModelResponse):
        return any([isinstance(part, FilePart) for part in message.parts])
    return any([isinstance(item, Url) for part in message.parts for item in _items(part)])


async def _with_data(media: MediaStore, owner: str, message: ModelMessage) -> ModelMessage:
    if isinstance(message, ModelResponse):
        new_parts = [await _with_file_data(media, owner, part) for part in message.parts]
        return message if new_parts == list(message.parts) else replace(message, parts=new_parts)
    parts: list[ModelRequestPart] = []
    for part in message.parts:
        items = _items(part)
        new = [await _content(media, owner, item, part) for item in items]
        parts.append(_with_items(part, new) if new != items else part)
    return message if parts == list(message.parts) else replace(message, parts=parts)


async def _content(media: MediaStore, owner: str, item: Any, part: ModelRequestPart) -> Any:
    if not isinstance(item, Url) or not item.url.startswith(ROUTE):
        return item
    try:
        found = await media.read(owner, item.url.removeprefix(ROUTE))
    except NotFound:
        return DELETED
    if isinstance(part, UserPromptPart) and isinstance(item, DocumentUrl) and not found.is_video:
        return found
    # Keep the name under which the visitor attached a file, and the one under which the model knows a tool's.
    return BinaryContent(found.data, media_type=item.media_type, identifier=item.identifier)


async def _with_file_data(media: MediaStore, owner: str, part: ModelResponsePart) -> ModelResponsePart:
    if not isinstance(part, FilePart) or part.content.data or not is_id(part.content.identifier):
        return part
    try:
        found = await media.read(owner, part.content.identifier)
    except NotFound:
        return TextPart(DELETED)
    content = BinaryContent(found.data, media_type=part.content.media_type)
    return replace(part, content=BinaryContent.narrow_type(content))


async def _reference(media: MediaStore, owner: str, item: Any, reference: str) -> Any:
    if not isinstance(item, BinaryContent):
        return item
    id_ = await media.add(owner, item, reference)
    known = not id_.endswith(UNKNOWN)
    kind = ImageUrl if known and item.is_image else AudioUrl if known and item.is_audio else DocumentUrl
    return kind(ROUTE + id_, media_type=item.media_type, identifier=item.identifier)


async def _with_file_reference(
    media: MediaStore, owner: str, part: ModelResponsePart, reference: str
) -> ModelResponsePart:
    if not isinstance(part, FilePart) or not part.content.data:
        return part
    id_ = await media.add(owner, part.content, reference)
    return replace(part, content=BinaryContent(b"", media_type=part.content.media_type, identifier=id_))


def _items(part: ModelRequestPart) -> list[Any]:
    if not isinstance(part, UserPromptPart | ToolReturnPart):
        return []
    content: Any = part.content
    return list(cast(Sequence[Any], content)) if isinstance(content, list | tuple) else [content]


def _with_items(part: Any, items: list[Any]) -> Any:
    return replace(part, content=items if isinstance(part.content, list | tuple) else items[0])
