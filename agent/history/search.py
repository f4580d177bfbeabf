"""Search in conversations: which text of a message is searched, how it is compared, and what a hit shows.

All stores compare text that `fold` has made, so that they find the same. A text matches if it contains every word of
the query, in any order and also within words, because many languages put no space between words.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import TypeVar

from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

from agent.history.values import Conversation, Entry
from agent.system.normal_form import compatible

T = TypeVar("T")

READ_BYTES = 2_000_000
"""The bytes of found messages that are in memory at once. Only an excerpt of each is kept."""
SLICE_CHARACTERS = 100_000
"""Characters that are folded at once, in a millisecond."""
MAX_WORDS = 8
"""Words of a query that are searched for. Further ones are ignored."""
EXCERPT_CHARACTERS = 160
BEFORE_HIT = 40
"""Characters of an excerpt before the first hit."""
ELLIPSIS = "…"
"""The sign for what an excerpt leaves out."""
NEAR = 1_000
"""Characters before and after an excerpt in which the signs of Markdown are looked for."""
_CODE = re.compile(
    r"^[ \t>]*(?P<fence>`{3,}|~{3,})[^`\n]*$(?P<block>.*?)(?:^[ \t>]*(?P=fence)[`~]*[ \t]*$|\Z)"
    r"|(?<![\\`])(?P<ticks>`+)(?!`)(?P<span>[^\n]+?)(?<!`)(?P=ticks)(?!`)",
    re.MULTILINE | re.DOTALL,
)
_ROW = re.compile(r"^[ \t>]*\|.*\|[ \t]*$", re.MULTILINE)
_SIGNS = [  # the groups of a match are the signs, or else the whole match is
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^[ \t]*(?:>[ \t]?)+",  # a quotation
        r"^[ \t>]*#{1,6}(?=\s|$)",  # a heading
        r"^[ \t>]*[-*+][ \t]+(?:\[[ xX]\](?=\s))?",  # an item of a list, or a task
        r"^[ \t>]*\d+[.)][ \t]+(\[[ xX]\](?=\s))",
        r"^[ \t>]*(?:(?:\*[ \t]*){3,}|(?:_[ \t]*){3,}|(?:-[ \t]*){2,}|=+[ \t]*)$",  # a rule, or below a heading
        r"^[ \t>]*(?:\|[ \t]*+)?(?::?-+:?[ \t]*+\|[ \t]*+)+[ \t:-]*+$",  # below the head of a table
        r"(!?\[)[^\[\]]+(\]\([^\s()]*(?:\([^\s()]*\)[^\s()]*)*(?:[ \t]+[\"'][^\n]*?[\"'])?\))",  # a link
        r"(!?\[)[^\[\]]+(\]\[[^\[\]\n]*\])",
        r"^[ \t>]*\[\^?[^\[\]\n]+\]:|\[\^[^\[\]\s]+\]",  # the address of a link, or a footnote
        r"(<)(?:https?://|mailto:)[^\s<>]+(>)",
        r"(?<![A-Za-z0-9_)\\])(?:\*{2,3}|~~)(?=\S)|(?<=[^\s\\])(?:\*{2,3}|~~)(?![A-Za-z0-9_(])",
        r"(?<![\w*)\\])(\*)(?=[^\s*])(?:[^*\n]|\*\*[^*\n]*\*\*)*?(?<=[^\s*\\])(\*)(?![\w*(])",
        r"(?<![\w\\])(_{1,3})(?=[^\s_])[^\n]*?(?<=[^\s_\\])(_{1,3})(?!\w)",
        r"\\(?=[!-/:-@\[-`{-~])",
    )
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationHit:
    """A conversation that was found, and its newest message with all words, on the branch that is shown if possible.

    `entry_id` is None if only the title has them. `excerpt` is a piece of the message, or the title. The characters
    from `start` to `end` of it are one of the words.
    """

    conversation: Conversation
    entry_id: str | None
    excerpt: str
    start: int = 0
    end: int = 0


def fold(text: str) -> str:
    """Return the text as it is compared: without case and differences of width, NUL or halves of surrogate pairs."""
    if not text.isascii():
        text = compatible("".join(map(_without_halves, _slices(text))))
    return "".join(map(str.casefold, _slices(text))).replace("\0", " ")


def _slices(text: str) -> Iterator[str]:
    """Yield a text in pieces that don't part the halves of a surrogate pair. No other thread runs during one."""
    at = 0
    while at < len(text):
        end = at + SLICE_CHARACTERS
        end += int("\ud800" <= text[end - 1 : end] < "\udc00")
        yield text[at:end]
        at = end


def _without_halves(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def words_of(query: str) -> list[str]:
    """Return the words of a query as `fold` makes them. An empty list finds nothing."""
    return list(dict.fromkeys(fold(query).split()))[:MAX_WORDS]


def searchable_text(entry: Entry) -> str:
    """Return the text of a message that people wrote or read: a prompt or an answer, without reasoning and tools."""
    return "\n".join(_texts(entry))


def hit_in(conversation: Conversation, entry: Entry | None, words: Sequence[str]) -> ConversationHit:
    """Return the hit with an excerpt of the entry's text, or of the title if there is no entry."""
    text = searchable_text(entry) if entry else conversation.title
    start, end = _first_place(text, words)
    begin = max(0, start - BEFORE_HIT)
    if begin:  # begin with a whole word if one begins nearby
        begin = text.find(" ", begin, start) + 1 or begin
    hidden = _signs_near(text, begin, words) - {*range(start, end)} if entry else set[int]()
    before = "".join(text[at] for at in range(begin, start) if at not in hidden)
    before = " ".join(before.split()) + (" " if before.strip() and before[-1:].isspace() else "")
    visible = (text[at] for at in range(start, len(text)) if at not in hidden)
    rest = " ".join("".join(islice(visible, EXCERPT_CHARACTERS - (start - begin))).split())
    shown = (ELLIPSIS if begin else "") + before
    length = len(" ".join(text[start:end].split()))
    return ConversationHit(
        conversation=conversation,
        entry_id=entry.id if entry else None,
        excerpt=shown + rest + ("" if all(map(str.isspace, visible)) else ELLIPSIS),
        start=len(shown),
        end=len(shown) + length,
    )


def excerpt_parts(hit: ConversationHit, query: str) -> Iterator[str]:
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


def hits_with_branches(hits: Iterable[ConversationHit]) -> list[str]:
    """Return the ids of the conversations with branches of which a message was found. It can be on another branch."""
    return [hit.conversation.id for hit in hits if hit.entry_id is not None and hit.conversation.branches]


def groups(items: Iterable[T], size_of: Callable[[T], int], most: int = READ_BYTES) -> Iterator[list[T]]:
    """Yield the items in groups, each up to the item with which it has the size `most`, by default in bytes."""
    group, size = list[T](), 0
    for item in items:
        group.append(item)
        size += size_of(item)
        if size >= most:
            yield group
            group, size = list[T](), 0
    if group:
        yield group


def _texts(entry: Entry) -> Iterator[str]:
    match entry.message:
        case ModelRequest(parts=parts):
            for part in parts:
                if isinstance(part, UserPromptPart):
                    items = [part.content] if isinstance(part.content, str) else part.content
                    yield from (item for item in items if isinstance(item, str))
        case ModelResponse(parts=parts):
            yield from (part.content for part in parts if isinstance(part, TextPart))


def _signs_near(text: str, begin: int, words: Sequence[str]) -> set[int]:
    """Return where signs of Markdown are near this place of a text. Code and the words that are sought have none."""
    first = text.rfind("\n", 0, max(0, begin - NEAR)) + 1
    part = text[first : begin + 2 * NEAR]
    fenced = len(re.findall(r"^[ \t>]*(?:`{3,}|~{3,})", text[:first], re.MULTILINE)) % 2
    part, ahead = ("```\n" + part, 4) if fenced else (part, 0)
    code, signs = set[int](), set[int]()
    for match in _CODE.finditer(part):
        inside = "block" if match["block"] is not None else "span"
        code.update(range(*match.span()))
        signs.update({*range(*match.span())} - {*range(*match.span(inside))})
    for pattern in _SIGNS:
        for match in pattern.finditer(part):
            for group in range(1, pattern.groups + 1) or (0,):
                signs.update({*range(*match.span(group))} - code)
    for row in _ROW.finditer(part):
        signs.update(
            at for at in range(*row.span()) if part[at] == "|" and part[at - 1 : at] != "\\" and at not in code
        )
    for place in places_of(part[begin - first + ahead :][:NEAR], words):
        signs.difference_update(range(place[0] + begin - first + ahead, place[1] + begin - first + ahead))
    return {at - ahead + first for at in signs}


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
    lengths = {character: len(fold(character)) for character in set[str]().union(*_slices(text))}
    if sum(_length(piece, lengths) for piece in _slices(text)) != len(folded):  # some characters are folded together
        return 0, 0
    return _count_until(place, text, lengths), _count_until(place + len(word) - 1, text, lengths) + 1


def _length(text: str, lengths: Mapping[str, int]) -> int:
    return sum(map(lengths.__getitem__, text))


def _count_until(place: int, text: str, lengths: Mapping[str, int]) -> int:
    """Return how many characters of a text end up to this place, if they have these lengths."""
    number = 0
    for piece in _slices(text):
        if (size := _length(piece, lengths)) > place:
            return number + bisect_right([*accumulate(map(lengths.__getitem__, piece))], place)
        place, number = place - size, number + len(piece)
    return number
