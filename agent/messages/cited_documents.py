"""Names the documents that an answer of Claude cites. The provider knows only their places in the request."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

from pydantic_ai.messages import (
    BinaryContent,
    Citation,
    CitationSource,
    DocumentCitationSource,
    DocumentUrl,
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ToolReturnPart,
    UserPromptPart,
)

from agent.citations import RAW
from agent.messages.parts import extracted_text_of, is_file_name

_DOCUMENTS = ("application/pdf", "text/plain")
_STORED = re.compile(r"[0-9a-f]{64}\..*")
"""The ids of stored files, which tell nobody anything."""


def with_document_names(
    response: ModelResponse, sent: Iterable[ModelMessage], messages: Iterable[ModelMessage]
) -> ModelResponse:
    """Return the answer to the messages in which the cited documents have the names of their files.

    A name ends in `#page=3` if the page is known. `sent` are the messages as the provider got them.
    """
    if not any(isinstance(part, TextPart) and part.citations for part in response.parts):
        return response
    known = dict(_names_beside_files(messages))
    names = [known.get(one) or _own_name(one) for one in _documents(sent)]
    return replace(response, parts=[_named(part, names) for part in response.parts])


def _names_beside_files(messages: Iterable[ModelMessage]) -> Iterator[tuple[str, str]]:
    """Yield the identifier and the name of each file that is followed by what was read of it."""
    for part in (part for message in messages for part in message.parts if isinstance(part, UserPromptPart)):
        for item, after in pairwise(() if isinstance(part.content, str) else part.content):
            if isinstance(item, BinaryContent | DocumentUrl) and (read := extracted_text_of(after)) is not None:
                yield item.identifier, str(read.get("name", ""))


def _documents(messages: Iterable[ModelMessage]) -> Iterator[str]:
    """Yield the identifier of each document in the messages."""
    for part in (part for message in messages for part in message.parts):
        items: Sequence[object] = ()
        if isinstance(part, UserPromptPart) and not isinstance(part.content, str):
            items = part.content
        elif isinstance(part, ToolReturnPart):
            items = part.files
        for item in items:
            if isinstance(item, BinaryContent) and item.media_type in _DOCUMENTS:
                yield item.identifier


def _own_name(identifier: str) -> str:
    return identifier if is_file_name(identifier) and not _STORED.fullmatch(identifier) else ""


def _named(part: ModelResponsePart, names: Sequence[str]) -> ModelResponsePart:
    if not isinstance(part, TextPart) or not part.citations:
        return part
    raw = cast("Sequence[Mapping[str, Any]]", (part.provider_details or {}).get(RAW, ()))
    if len(part.citations) > 1 or len(raw) != len(part.citations[0].sources):  # it is not known which is which
        return part
    sources = [_named_source(*pair, names) for pair in zip(part.citations[0].sources, raw, strict=True)]
    return replace(part, citations=[Citation(sources, anchor=part.citations[0].anchor)])


def _named_source(source: CitationSource, raw: Mapping[str, Any], names: Sequence[str]) -> CitationSource:
    number, page = raw.get("document_index"), raw.get("start_page_number")
    if not isinstance(source, DocumentCitationSource) or source.title or not isinstance(number, int):
        return source
    name = names[number] if 0 <= number < len(names) else ""
    title = f"{name}#page={page}" if isinstance(page, int) else name
    return replace(source, title=title or None)
