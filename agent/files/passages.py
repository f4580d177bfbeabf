"""Cuts a document to what fits: the whole text, or the passages that suit a question best, in the order of the pages.

It is a pure function, so the same question always gives the same text.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from agent.files.kinds import TEXT, Document
from agent.files.ranking import PASSAGE, KeywordIndex, Passage, indexed, pieces

MAX_RANGES = 12
"""The most page ranges that are named."""
SKIPPED = "[…]"
SHORTEST = 100
"""Characters of the shortest passage that a text is cut into, about: a sentence or two lines."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The text of a document that a model gets, with a mark before each page. `pages` are the numbers of its pages."""

    text: str
    pages: tuple[int, ...]
    is_whole: bool

    @property
    def ranges(self) -> str:
        """The numbers of the pages: "3-5, 9"."""
        return ranges_of(self.pages)


def ranges_of(pages: Iterable[int]) -> str:
    """Return the numbers of pages as ranges: "3-5, 9"."""
    ranges: list[list[int]] = []
    for page in pages:
        if ranges and page == ranges[-1][1] + 1:
            ranges[-1][1] = page
        else:
            ranges.append([page, page])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges[:MAX_RANGES]]
    return ", ".join(texts) + (" …" if len(ranges) > MAX_RANGES else "")


def sections_of_text(text: str, most: int = 4_000) -> Document:
    """Return a long text file as a document of sections, which end at line breaks."""
    return Document(TEXT, "", tuple(pieces(text, most)))


def excerpts(documents: Sequence[Document], question: str, room: int) -> list[Excerpt]:
    """Return what a model gets of each document if all together have `room` bytes, smaller documents first."""
    found: dict[int, Excerpt] = {}
    sizes = {number: whole_size(document) for number, document in enumerate(documents)}
    for number in sorted(sizes, key=sizes.__getitem__):
        share = room // (len(documents) - len(found))
        found[number] = excerpt(documents[number], question, share)
        room -= len(found[number].text.encode("utf-8", "replace"))
    return [found[number] for number in range(len(documents))]


def excerpt(document: Document, question: str, max_bytes: int) -> Excerpt:
    """Return the whole document if it has at most `max_bytes` bytes with its marks, or else its best passages.

    If no word of the question occurs in the document, it is read from its beginning.
    """
    if whole_size(document) <= max_bytes:
        return Excerpt(_whole(document), tuple(range(1, len(document.pages) + 1)), is_whole=True)
    passages, keywords = indexed((document,), _length_for(max_bytes), question)
    chosen = _choose(passages, keywords.ranked(question), max_bytes)
    return Excerpt(
        _joined(document, passages, chosen), tuple(sorted({passages[at].page for at in chosen})), is_whole=False
    )


def best_excerpts(documents: Sequence[Document], question: str, max_bytes: int) -> list[Excerpt | None]:
    """Return the passages of all these documents that suit the question best, together at most `max_bytes` bytes.

    A document without a word of the question has None.
    """
    passages, keywords = indexed_for(documents, max_bytes, question)
    return excerpts_in_order(documents, passages, keywords.ranked(question), max_bytes)


def indexed_for(
    documents: Sequence[Document], max_bytes: int, question: str
) -> tuple[tuple[Passage, ...], KeywordIndex]:
    """Return the passages of these documents, of which several fit into `max_bytes` bytes, and their words.

    The words are those of the question.
    """
    return indexed(documents, _length_for(max_bytes), question)


def excerpts_in_order(
    documents: Sequence[Document], passages: Sequence[Passage], order: Sequence[int], max_bytes: int
) -> list[Excerpt | None]:
    """Return the first of these passages in this order, with their neighbours, together at most `max_bytes` bytes.

    A document without one of them has None.
    """
    chosen = _chosen(passages, _unique(_around(order, passages), len(passages)), max_bytes)
    found: list[Excerpt | None] = []
    for number, document in enumerate(documents):
        own = [at for at, passage in enumerate(passages) if passage.document == number]
        kept = {place for place, at in enumerate(own) if at in chosen}
        text = _joined(document, [passages[at] for at in own], kept)
        pages = tuple(sorted({passages[own[place]].page for place in kept}))
        found.append(Excerpt(text, pages, is_whole=False) if kept else None)
    return found


def _length_for(max_bytes: int) -> int:
    """Return the characters of a passage, so that a few fit also where a model has little room."""
    return max(SHORTEST, min(PASSAGE, max_bytes // 4))


def whole_size(document: Document) -> int:
    """Return the bytes of the whole text with its marks."""
    return len(_whole(document).encode("utf-8", "replace"))


def are_whole(sizes: Sequence[int], room: int) -> list[bool]:
    """Return for documents of these sizes whether `excerpts` gives the whole text. It ranks no passages."""
    whole = [False] * len(sizes)
    left = len(sizes)
    for number in sorted(range(len(sizes)), key=sizes.__getitem__):
        whole[number] = sizes[number] <= room // left
        room -= min(sizes[number], room // left)
        left -= 1
    return whole


def _whole(document: Document) -> str:
    pages = enumerate(document.pages, 1)
    return "\n\n".join(f"{page_mark(document, number)}\n{page}".rstrip() for number, page in pages)


def page_mark(document: Document, page: int) -> str:
    """Return the mark that stands before the text of a page: "[Page 3]"."""
    return f"[{document.unit.capitalize()} {page}]"


def _choose(passages: Sequence[Passage], order: Sequence[int], max_bytes: int) -> set[int]:
    """Return the passages that fit: each of the best with its neighbours, then the document's beginning."""
    around = _around(order, passages)
    return _chosen(passages, _unique([*around, *range(len(passages))], len(passages)), max_bytes)


def _around(order: Sequence[int], passages: Sequence[Passage]) -> Iterator[int]:
    """Yield each of these passages with its neighbours in the same document."""
    for at in order:
        for near in (at, at + 1, at - 1):
            if 0 <= near < len(passages) and passages[near].document == passages[at].document:
                yield near


def _chosen(passages: Sequence[Passage], order: Iterable[int], max_bytes: int) -> set[int]:
    """Return the passages that fit, in this order of preference."""
    chosen: set[int] = set()
    for at in order:
        # A page mark and a mark of what was skipped can come with each.
        size = len(passages[at].text.encode("utf-8", "replace")) + 40
        if size <= max_bytes:
            chosen.add(at)
            max_bytes -= size
        elif max_bytes < PASSAGE // 2 and chosen:
            break
    return chosen


def _unique(numbers: Iterable[int], below: int) -> Iterator[int]:
    seen: set[int] = set()
    for number in numbers:
        if 0 <= number < below and number not in seen:
            seen.add(number)
            yield number


def _joined(document: Document, passages: Sequence[Passage], chosen: set[int]) -> str:
    lines: list[str] = []
    page, last = 0, -1
    for at in sorted(chosen):
        passage = passages[at]
        if at != last + 1:
            lines.append(SKIPPED)
        if passage.page != page:
            lines += ["", page_mark(document, passage.page)]
        lines.append(passage.text)
        page, last = passage.page, at
    if last != len(passages) - 1:
        lines.append(SKIPPED)
    return "\n".join(lines).strip()
