"""Citations of an answer: those that still fit the stored text, and their positions in the text of a result."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import cast
from urllib.parse import urlsplit

from pydantic_ai.messages import Citation, ModelMessage, ModelResponse, ModelResponsePart, TextPart, WebCitationSource

DROPPED = "dropped_citations"
"""The key in the metadata of a message for the number of its citations that pointed nowhere."""
RAW = "citations"
"""The key in the details of a text of Claude for its citations as they came."""


def fitting(part: TextPart, text: str, cut: int) -> list[Citation]:
    """Return the citations of a part whose text becomes `text`, without its first `cut` characters.

    Citations that point nowhere are left out: those of other characters than before, and those without an address.
    """
    return list(_fitting(part, text, cut))


def _fitting(part: TextPart, text: str, cut: int) -> Iterator[Citation]:
    for citation in part.citations or ():
        sources = [one for one in citation.sources if not isinstance(one, WebCitationSource) or is_page(one.url)]
        if not sources:
            continue
        anchor = citation.anchor
        if anchor is not None:
            start, end = anchor.start - cut, anchor.end - cut
            if start < 0 or end > len(text) or text[start:end] != part.content[anchor.start : anchor.end]:
                continue
            anchor = replace(anchor, start=start, end=end)
        yield Citation(sources, anchor=anchor)


def is_page(url: str) -> bool:
    """Return True for the address of a web page. No other address is ever shown as a source."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc)


def checked(message: ModelMessage) -> ModelMessage:
    """Return a message that was not stored here without its citations that point nowhere, which are counted."""
    if not isinstance(message, ModelResponse):
        return message
    texts = {n: part for n, part in enumerate(message.parts) if isinstance(part, TextPart) and part.citations}
    kept = {n: fitting(part, part.content, 0) for n, part in texts.items()}
    if all(kept[n] == part.citations for n, part in texts.items()):
        return message
    dropped = sum(len(part.citations or ()) - len(kept[n]) for n, part in texts.items())
    parts = [replace(texts[n], citations=kept[n] or None) if n in texts else one for n, one in enumerate(message.parts)]
    return with_dropped(replace(message, parts=parts), dropped)


def with_dropped(response: ModelResponse, count: int) -> ModelResponse:
    """Return the response with the number of its citations that were left out, if there are any."""
    if not count:
        return response
    return replace(response, metadata={**(response.metadata or {}), DROPPED: _dropped(response) + count})


def dropped_citations(messages: Iterable[ModelMessage]) -> int:
    """Return how many citations of these messages were left out."""
    return sum(_dropped(one) for one in messages if isinstance(one, ModelResponse))


def _dropped(response: ModelResponse) -> int:
    count = (response.metadata or {}).get(DROPPED)
    return count if isinstance(count, int) else 0


def moved(citations: Iterable[Citation], by: int) -> Iterator[Citation]:
    """Yield the citations of a text with the positions that they have after `by` more characters."""
    for one in citations:
        anchor = one.anchor and replace(one.anchor, start=one.anchor.start + by, end=one.anchor.end + by)
        yield Citation(one.sources, anchor=anchor)


def in_joined_text(parts: Sequence[TextPart], separator: str) -> list[Citation]:
    """Return the citations of these parts with the positions that they have in the joined text."""
    found: list[Citation] = []
    at = 0
    for part in parts:
        found += moved(part.citations or (), at)
        at += len(part.content) + len(separator)
    return found


def with_texts_joined(response: ModelResponse) -> ModelResponse:
    """Return the response with texts that follow one another as one. Claude begins a new one for each citation."""
    parts: list[ModelResponsePart] = []
    for is_text, group in groupby(response.parts, key=lambda part: isinstance(part, TextPart)):
        texts = [*group]
        parts += [_one_text(cast("Sequence[TextPart]", texts))] if is_text and len(texts) > 1 else texts
    return replace(response, parts=parts)


def _one_text(parts: Sequence[TextPart]) -> TextPart:
    details = {name: value for part in parts for name, value in (part.provider_details or {}).items() if name != RAW}
    return replace(
        parts[0],
        content="".join(part.content for part in parts),
        citations=in_joined_text(parts, "") or None,
        provider_details=details or None,
    )
