"""Search in conversations: which text of a message is searched, how it is compared, and what a hit shows.

All stores compare text that `fold` has made, so that they find the same. A text matches if it contains every word of
the query, in any order and also within words, because many languages put no space between words.
"""

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

from agent.history.records import Entry, Record

MAX_WORDS = 8
"""Words of a query that are searched for. Further ones are ignored."""
EXCERPT_CHARACTERS = 160
BEFORE_HIT = 40
"""Characters of an excerpt before the first hit."""
ELLIPSIS = "…"
"""The sign for what an excerpt leaves out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """A conversation that was found, and its newest message with all words, on the branch that is shown if possible.

    `entry_id` is None if only the title has them. `excerpt` is a piece of the message, or the title. The characters
    from `start` to `end` of it are one of the words.
    """

    record: Record
    entry_id: str | None
    excerpt: str
    start: int = 0
    end: int = 0


def fold(text: str) -> str:
    """Return the text as it is compared: without case and differences of width, NUL or halves of surrogate pairs."""
    if not text.isascii():
        valid = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        text = unicodedata.normalize("NFKC", valid)
    return text.casefold().replace("\0", " ")


def words_of(query: str) -> list[str]:
    """Return the words of a query as `fold` makes them. An empty list finds nothing."""
    return list(dict.fromkeys(fold(query).split()))[:MAX_WORDS]


def searchable_text(entry: Entry) -> str:
    """Return the text of a message that people wrote or read: a prompt or an answer, without reasoning and tools."""
    return "\n".join(_texts(entry))


def hit_in(record: Record, entry: Entry | None, words: Sequence[str]) -> SearchHit:
    """Return the hit with an excerpt of the entry's text, or of the title if there is no entry."""
    text = searchable_text(entry) if entry else record.title
    start, end = _first_place(text, words)
    begin = max(0, start - BEFORE_HIT)
    if begin:  # begin with a whole word if one begins nearby
        begin = text.find(" ", begin, start) + 1 or begin
    piece = " ".join(text[begin:start].split()) if begin < start else ""
    before = piece + (" " if piece and text[start - 1].isspace() else "")
    rest = " ".join(text[start : begin + EXCERPT_CHARACTERS].split())
    shown = (ELLIPSIS if begin else "") + before
    length = len(" ".join(text[start:end].split()))
    return SearchHit(
        record=record,
        entry_id=entry.id if entry else None,
        excerpt=shown + rest + (ELLIPSIS if begin + EXCERPT_CHARACTERS < len(text) else ""),
        start=len(shown),
        end=len(shown) + length,
    )


def excerpt_parts(hit: SearchHit, query: str) -> Iterator[str]:
    """Yield the pieces of an excerpt. Each second one is a word of the query, which a list of hits can mark."""
    begin = len(hit.excerpt) - len(hit.excerpt.removeprefix(ELLIPSIS))  # `fold` makes dots of it
    text, end = hit.excerpt[begin:].removesuffix(ELLIPSIS), 0
    for first, last in places_of(text, words_of(query)):
        yield hit.excerpt[end : begin + first]
        yield text[first:last]
        end = begin + last
    yield hit.excerpt[end:]


def places_of(text: str, words: Sequence[str]) -> list[tuple[int, int]]:
    """Return where any of these words begin and end in a short text, in order and without overlaps."""
    groups = list(_folded_together(text))
    at = [0, *accumulate(map(len, groups))]
    folded = [fold(group) for group in groups]
    group_of = [number for number, part in enumerate(folded) for _ in part]
    whole, out = "".join(folded), list[tuple[int, int]]()
    found = [(begin, begin + len(word)) for word in words for begin in _all_places(whole, word)]
    for first, last in sorted((at[group_of[begin]], at[group_of[end - 1] + 1]) for begin, end in found):
        if out and first < out[-1][1]:
            out[-1] = out[-1][0], max(last, out[-1][1])
        else:
            out.append((first, last))
    return out


def hits_with_branches(hits: Iterable[SearchHit]) -> list[str]:
    """Return the ids of the conversations with branches of which a message was found. It can be on another branch."""
    return [hit.record.id for hit in hits if hit.entry_id is not None and hit.record.branches]


def hits_as_shown(hits: Iterable[SearchHit], shown: Mapping[str, Entry], words: Sequence[str]) -> list[SearchHit]:
    """Return the hits. Those of the conversations in `shown` are at its entry, which is on the branch that is shown."""
    return [
        hit_in(hit.record, entry, words) if (entry := shown.get(hit.record.id)) is not None else hit for hit in hits
    ]


def _texts(entry: Entry) -> Iterator[str]:
    match entry.message:
        case ModelRequest(parts=parts):
            for part in parts:
                if isinstance(part, UserPromptPart):
                    items = [part.content] if isinstance(part.content, str) else part.content
                    yield from (item for item in items if isinstance(item, str))
        case ModelResponse(parts=parts):
            yield from (part.content for part in parts if isinstance(part, TextPart))


def _all_places(text: str, word: str) -> Iterator[int]:
    at = text.find(word)
    while at >= 0:
        yield at
        at = text.find(word, at + len(word))


def _folded_together(text: str) -> Iterator[str]:
    """Yield the characters of a text, those together that `fold` joins, such as a letter and its accent."""
    group = ""
    for character in text:
        is_apart = not unicodedata.combining(character) and fold(group + character) == fold(group) + fold(character)
        if group and is_apart:
            yield group
            group = ""
        group += character
    if group:
        yield group


def _first_place(text: str, words: Sequence[str]) -> tuple[int, int]:
    """Return where the first of the words begins and ends in the text, (0, 0) if it is not found."""
    folded = fold(text)
    found = [(place, word) for word in words if (place := folded.find(word)) >= 0]
    if not found:
        return 0, 0
    place, word = min(found)
    if len(folded) == len(text):
        return place, place + len(word)
    starts = [number for number, character in enumerate(text) for _ in fold(character)]
    if len(starts) != len(folded):  # some characters are folded together
        return 0, 0
    return starts[place], starts[place + len(word) - 1] + 1
