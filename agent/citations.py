"""Citations of an answer: those that still fit the stored text, and their positions in the text of a result."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from pydantic_ai.messages import Citation, ModelMessage, ModelResponse, TextPart, WebCitationSource

DROPPED = "dropped_citations"
"""The key in the metadata of a message for the number of its citations that pointed nowhere."""


def fitting(part: TextPart, text: str, cut: int) -> list[Citation]:
    """Return the citations of a part whose text becomes `text`, without its first `cut` characters.

    Citations that point nowhere are left out: those of other characters than before, and those without an address.
    """
    return list(_fitting(part, text, cut))


def _fitting(part: TextPart, text: str, cut: int) -> Iterator[Citation]:
    for citation in part.citations or ():
        sources = [one for one in citation.sources if not isinstance(one, WebCitationSource) or _is_page(one.url)]
        if not sources:
            continue
        anchor = citation.anchor
        if anchor is not None:
            start, end = anchor.start - cut, anchor.end - cut
            if start < 0 or end > len(text) or text[start:end] != part.content[anchor.start : anchor.end]:
                continue
            anchor = replace(anchor, start=start, end=end)
        yield Citation(sources, anchor=anchor)


def _is_page(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc)


def with_dropped(response: ModelResponse, count: int) -> ModelResponse:
    """Return the response with the number of its citations that were left out, if there are any."""
    return replace(response, metadata={**(response.metadata or {}), DROPPED: count}) if count else response


def dropped_citations(messages: Iterable[ModelMessage]) -> int:
    """Return how many citations of these messages were left out."""
    return sum((one.metadata or {}).get(DROPPED, 0) for one in messages if isinstance(one, ModelResponse))


def in_joined_text(parts: Sequence[TextPart], separator: str) -> list[Citation]:
    """Return the citations of these parts with the positions that they have in the joined text."""
    found: list[Citation] = []
    at = 0
    for part in parts:
        for one in part.citations or ():
            anchor = one.anchor and replace(one.anchor, start=one.anchor.start + at, end=one.anchor.end + at)
            found.append(Citation(one.sources, anchor=anchor))
        at += len(part.content) + len(separator)
    return found
