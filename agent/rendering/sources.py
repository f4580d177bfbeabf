"""Numbers the sources that an answer cites, and puts the numbers into its text.

Titles, addresses and passages are written by websites and models. Whoever shows them escapes them.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from unicodedata import category
from urllib.parse import quote, urlsplit, urlunsplit

from markdown_it import MarkdownIt
from pydantic_ai.messages import Citation, WebCitationSource

from agent.citations import is_page
from agent.i18n.text import LocalizedText, _

_TICKS = re.compile("`+")


def code_spans(text: str) -> dict[int, int]:
    """Return the start and end of each code span. A run of backticks is closed by the next one
    of its length."""
    spans, begun = dict[int, int](), dict[int, int]()
    for run in _TICKS.finditer(text):
        length = run.end() - run.start()
        if length in begun:
            spans[begun[length]] = run.end()
        begun[length] = run.start()
    return spans


_LINE_END = re.compile(r"\r\n?|\n")
_LINE_BEGINNING = re.compile(r"^(?:[ \t>]|(?:[-*+]|\d{1,9}[.)]|#{1,6})(?=[ \t]))+", re.MULTILINE)
_TOKEN = re.compile(
    r"\\(?P<opens>[(\[])"
    r"|\\."
    r"|(?P<ticks>`+)"
    r"|(?P<dollars>\$\$|\$[^$\n]++\$)"
    r"|<[^<>\n]*+>"
    r"|https?://[^\s<>]++"
    r"|!?\[(?:[^\[\]\n]|\[[^\[\]\n]*+\])*+\](?:\([^()\n]*+(?:\([^()\n]*+\)[^()\n]*+)*+\)|\[[^\[\]\n]*+\])"
    r"|&#?\w{1,40};",
    re.DOTALL,
)
_EMPHASIS = "*_~"
_CELL = " \t|"


def _block_reader() -> MarkdownIt:
    reader = MarkdownIt("commonmark").enable("table")
    reader.core.ruler.enableOnly(["normalize", "block"])
    return reader


_BLOCKS = _block_reader()


class MarkPlaces:
    """The places of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        lines = [0, *(found.end() for found in _LINE_END.finditer(text)), len(text)]
        is_cell = False
        self._blocks: list[tuple[int, int, bool]] = []
        """The beginning and end of each block of words, and whether it is the row of a table. Rows are there once."""
        for token in _BLOCKS.parse(text):
            if token.type == "inline" and token.map is not None:
                first, after = token.map
                end = lines[first] + len(text[lines[first] : lines[after]].rstrip())
                if not self._blocks or self._blocks[-1][0] < lines[first]:
                    self._blocks.append((lines[first], end, is_cell))
            is_cell = token.type in ("th_open", "td_open")
        self._ends = [end for _, end, _ in self._blocks]
        self._closed: dict[int, list[tuple[int, int]]] = {}
        """By block: the parts of it in which nothing can stand."""

    def after(self, start: int, end: int) -> int | None:
        """Return the place after the words from `start` to `end`, or the last one before; None if there is none."""
        at = start + len(self._text[start:end].rstrip())
        number = bisect_left(self._ends, at)
        if number == len(self._blocks) or self._blocks[number][0] >= at:  # it is in code, or between blocks
            if number == 0:
                return None
            number, at = number - 1, self._ends[number - 1]
        first, last, is_row = self._blocks[number]
        while is_row and at > first and self._text[at - 1] in _CELL:
            at -= 1
        if number not in self._closed:
            self._closed[number] = [*self._spans(first, last)]
        for begins, ends in self._closed[number]:
            if begins < at < ends:
                at = ends
        while at < last and self._text[at] in _EMPHASIS:
            at += 1
        return at

    def _spans(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of a block in which nothing can stand, in their order."""
        text = self._text[first:last]
        ticks = code_spans(text)
        at = 0
        while token := _TOKEN.search(text, at):
            at = token.end()
            if token["opens"] or token["dollars"] == "$$":
                closes = "$$" if token["dollars"] else "\\)" if token["opens"] == "(" else "\\]"
                end = text.find(closes, at)
                at = at if end < 0 else end + 2
            elif token["ticks"]:
                at = ticks.get(token.start(), at)
            yield first + token.start(), first + at
        for line in _LINE_BEGINNING.finditer(text):
            yield first + line.start() - 1, first + line.end()


SOURCES, DOCUMENT = _("Sources"), _("Document")
TITLE_CHARACTERS = 200
PASSAGE_CHARACTERS = 700
"""The most characters of a title and of a passage. A provider can return a whole page as the passage."""
MAX_MARKED = 100_000
"""Characters of a text in which numbers stand. The sources that the rest cites are only in the list."""
MAX_CITATIONS, MAX_PASSAGES = 1_000, 20
"""The most citations of a text, and passages of a source, that are shown."""
MAX_ADDRESS = 2_000
"""The most characters of an address. A longer one is not shown as a source."""
_IN_URL = "!#%&'+,/:;=?@[]~"
"""The characters that stay in an address. Others could end a link, a cell of a table or a tag."""
_JOINERS = "\u200c\u200d"
"""Format characters that words of some languages and emoji need."""
_PAGE = re.compile(r"(.*)#page=(\d{1,6})", re.DOTALL)


@dataclass(slots=True)
class Source:
    """A source of an answer. `url` is that of a web page, and "" for a document, of which `page` is the page, if known.

    `number` counts the sources from 1, in the order in which they are cited. `passages` are those that are cited.
    """

    number: int
    title: str
    url: str = ""
    page: int | None = None
    passages: list[str] = field(default_factory=list[str])

    @property
    def place(self) -> LocalizedText | str:
        """The site of a web page, or the page of a document; "" if it is not known."""
        if self.url:
            return _host(self.url)
        return "" if self.page is None else _("page {page}", page=self.page)


@dataclass(frozen=True, slots=True)
class Mark:
    """A source in the text: its number, the number of the cited passage from 1 (0 for none), and its address or ""."""

    number: int
    passage: int
    url: str


class Sources:
    """The sources of one answer, which can have several texts. Marking a text again gives the same numbers."""

    def __init__(self) -> None:
        self._sources: dict[tuple[str, str, int | None], Source] = {}

    def __iter__(self) -> Iterator[Source]:
        return iter(self._sources.values())

    def __bool__(self) -> bool:
        return bool(self._sources)

    def mark(self, text: str, citations: Sequence[Citation], write: Callable[[Mark], str]) -> str:
        """Return the Markdown text with what `write` makes of each source, behind the words that cite it."""
        if not citations:
            return text
        places = MarkPlaces(text[:MAX_MARKED])
        marks, count = dict[int, dict[Mark, None]](), 0
        for citation in sorted(citations, key=lambda one: one.anchor.end if one.anchor else len(text))[:MAX_CITATIONS]:
            start, end = (citation.anchor.start, citation.anchor.end) if citation.anchor else (0, len(text))
            place = places.after(start, end) if end <= MAX_MARKED else None
            for mark in self._marks(citation):
                if place is not None and count < MAX_CITATIONS:  # otherwise it is only in the list
                    marks.setdefault(place, {})[mark] = None
                    count += 1
        out, at = list[str](), 0
        for place in sorted(marks):
            out += [text[at:place], *map(write, marks[place])]
            at = place
        return "".join([*out, text[at:]])

    def _marks(self, citation: Citation) -> Iterator[Mark]:
        for one in citation.sources:
            page: int | None = None
            if isinstance(one, WebCitationSource):
                if len(one.url) > MAX_ADDRESS or not is_page(one.url):
                    continue
                url = _address(one.url)
                key, title = url, _line(one.title or "", TITLE_CHARACTERS) or _host(url)
            else:
                url, named = "", shown_title(one.title or "")
                if found := _PAGE.fullmatch(named):
                    named, page = found[1], int(found[2])
                key, title = one.document_id or named, named
            source = self._sources.setdefault((key, "" if url else "document", page), Source(0, title, url, page))
            source.number = source.number or len(self._sources)
            passages = [_line(passage, PASSAGE_CHARACTERS) for passage in one.excerpts[:MAX_PASSAGES]]
            passages = [passage for passage in passages if passage]
            new = [passage for passage in passages if passage not in source.passages]
            source.passages += new[: MAX_PASSAGES - len(source.passages)]
            number = source.passages.index(passages[0]) + 1 if passages and passages[0] in source.passages else 0
            yield Mark(source.number, number, source.url)


def shown_title(name: str) -> str:
    """Return the title under which a document with this name is shown."""
    return _line(name, TITLE_CHARACTERS)


def _address(url: str) -> str:
    """Return the address in ASCII: no letter of its site looks like another one, and nothing in it ends a link."""
    parts = urlsplit(url)
    with suppress(UnicodeError):  # no browser opens such an address
        url = urlunsplit(parts._replace(netloc=parts.netloc.encode("idna").decode()))
    return quote(url, safe=_IN_URL, errors="replace")


def _host(url: str) -> str:
    return (urlsplit(url).hostname or "").removeprefix("www.")


def _line(text: str, most: int) -> str:
    """Return a text in one line, without characters that nobody sees or that turn the direction of what follows."""
    words = " ".join("".join(" " if char.isspace() else char for char in text[: 4 * most] if _is_shown(char)).split())
    return words if len(words) <= most else words[: most - 1].rstrip() + "…"


def _is_shown(char: str) -> bool:
    return char.isspace() or char in _JOINERS or category(char) not in ("Cc", "Cf", "Cs", "Co", "Cn")
