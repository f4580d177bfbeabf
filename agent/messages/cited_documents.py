"""Names the documents that an answer cites, and finds the pages that it names in its text, such as "(p. 47)".

Claude cites documents that it reads itself by their places in the request. Any other model names the pages that it was
told, as "(p. 47)", "[Page 47]" or "(report.pdf, p. 47)", or the document by its number, "[1]". Pages of the web that a
tool has found or read have numbers, too.
"""

# ruff: noqa: RUF001, the brackets of other languages are meant

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import Any, cast

from pydantic_ai.messages import (
    BinaryContent,
    Citation,
    CitationSource,
    ContentCitationAnchor,
    DocumentCitationSource,
    DocumentUrl,
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ToolReturnPart,
    UserPromptPart,
    WebCitationSource,
)

from agent.citations import RAW, WebPage, found_pages
from agent.files.parts import extracted_text_of, is_file_name

_BRACKETS = re.compile(r"[(\[（【]([^()\[\]（）【】\n]{1,120})[)\]）】](?![(\[])")
_PAGES = re.compile(
    r"\b(?P<word>pp?\.?|pages?|pág(?:ina)?s?\.?|S\.|Seiten?|slides?|Folien?|diapos?(?:itives?)?|sheets?|feuilles?|Blatt|"
    r"sections?|Abschnitte?)\s{0,3}(?P<numbers>\d{1,5}(?:\s{0,3}(?:[-,&\u2013]|and|und|et|bis|to)\s{0,3}\d{1,5}){0,50})"
    r"|第?\s{0,3}(?P<other>\d{1,5})\s{0,3}(?:页|頁|ページ|쪽|페이지)",
    re.IGNORECASE,
)
_NUMBERS = re.compile(r"\d{1,2}(?:\s*,\s*\d{1,2})*")
_OWN_LIST = re.compile(r"^[ \t>*-]*\[(\d{1,2})\]:?[ \t]+(.*)$", re.MULTILINE)
"""A line of a list of sources that the model wrote itself."""
_MARK = re.compile(r"^\[(?:Page|Slide|Sheet|Section) (\d{1,5})\]$", re.MULTILINE)
_RESULT = re.compile(r"^(.+), (?:from )?(page|slide|sheet|section)s? [\d, …-]+ of (\d{1,5}):$", re.MULTILINE)
"""The line before the passages or pages of a file in a result of `search_files` or `read_pages`."""
_WORDS = re.compile(r"\w{4,}|\d+")
_SENTENCES = re.compile(r"(?<=[.!?。！？])\s+|\n+")
_UNITS = {
    **dict.fromkeys(("sl", "fo", "di"), "slide"),
    **dict.fromkeys(("sh", "fe", "bl"), "sheet"),
    **dict.fromkeys(("sections", "section", "ab"), "section"),
}
"""The names of parts by the first letters of the word before a number. Any other word means a page."""
_CODE = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)|`[^`\n]*`|\$[^$\n]+\$", re.DOTALL)
MAX_NAMED = 100
"""The most pages of an answer that are linked."""
MAX_BRACKETS = 1_000
"""The first brackets of an answer in which pages are looked for."""
MAX_LINE = 400
"""Characters of a line of a model's own list, and of the text before a bracket, in which pages are looked for."""
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
        return with_named_pages(response, messages)
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


@dataclass(slots=True)
class _Document:
    """A document of which a model got text: the name of its parts, their number, and the texts that it got."""

    name: str
    unit: str
    count: int
    pages: dict[int, str]
    url: str = ""
    """The address of a page of the web. Its text is that of page 1."""
    _words: dict[int, frozenset[str]] = field(default_factory=dict[int, frozenset[str]])
    _passages: dict[int, list[tuple[str, frozenset[str]]]] = field(
        default_factory=dict[int, list[tuple[str, frozenset[str]]]]
    )

    def shared(self, page: int, sentence: str) -> int:
        """Return how many words of a sentence are on a page."""
        if page not in self._words:
            self._words[page] = _words(self.pages.get(page, ""))
        return len(self._words[page] & _words(sentence))

    def best_page(self, sentence: str) -> int:
        """Return the page that shares the most words with a sentence, the first of them."""
        return max(self.pages, key=lambda page: (self.shared(page, sentence), -page), default=1)

    def source(self, page: int, sentence: str) -> CitationSource:
        """Return the source with the passage of its page that shares the most words with the sentence, at least two."""
        if page not in self._passages:
            passages = (one.strip() for one in _SENTENCES.split(self.pages.get(page, "")))
            self._passages[page] = [(one, _words(one)) for one in passages if one]
        words = _words(sentence)
        best = max(self._passages[page], key=lambda one: len(one[1] & words), default=("", frozenset[str]()))
        excerpts = [best[0]] if len(best[1] & words) > 1 else []
        if self.url:
            return WebCitationSource(url=self.url, title=self.name, excerpts=excerpts)
        return DocumentCitationSource(title=f"{self.name}#page={page}", excerpts=excerpts)


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORDS.findall(text.casefold()))


def with_named_pages(response: ModelResponse, messages: Iterable[ModelMessage]) -> ModelResponse:
    """Return the answer with a citation for each page of a document of the messages that its text names."""
    if not any(isinstance(part, TextPart) and _BRACKETS.search(part.content) for part in response.parts):
        return response
    messages = [*messages]
    documents, web = _documents_as_text(messages), dict[int, _Document]()
    for number, title, url, text in web_pages(messages):
        pages = {1: "\n".join(filter(None, [web[number].pages[1] if number in web else "", text]))}
        web[number] = _Document(title, "", 1, pages, url)
    if not (documents or web):
        return response
    return replace(response, parts=[_with_pages(part, documents, web) for part in response.parts])


def web_pages(messages: Iterable[ModelMessage]) -> Iterator[WebPage]:
    """Yield the pages of the web that the tools' results in these messages name, in their order."""
    for part in (part for message in messages for part in message.parts):
        if isinstance(part, ToolReturnPart) and part.outcome == "success" and isinstance(part.content, str):
            yield from found_pages(part.tool_name, part.content)


def _documents_as_text(messages: Iterable[ModelMessage]) -> list[_Document]:
    """Return the documents whose text is in the messages, in the order in which they come first."""
    found: dict[str, _Document] = {}

    def add(name: str, unit: str, count: str, text: str) -> None:
        one = found.setdefault(name, _Document(name, unit, 0, {}))
        one.unit, one.count = unit, int(count) if count.isdecimal() else 0
        _before, *marked = _MARK.split(text)
        for number, page in zip(marked[::2], marked[1::2], strict=True):
            one.pages[int(number)] = f"{one.pages.get(int(number), '')}\n{page}"

    for part in (part for message in messages for part in message.parts):
        if isinstance(part, UserPromptPart) and not isinstance(part.content, str):
            for read in map(extracted_text_of, part.content):
                if read is not None and read["kind"] == "document":
                    add(read["name"], read.get("unit", ""), read.get("count", ""), read["read"])
        elif isinstance(part, ToolReturnPart) and part.tool_name in ("search_files", "read_pages") and found:
            _before, *results = _RESULT.split(str(part.content))
            for name, unit, count, text in zip(*(results[at::4] for at in range(4)), strict=True):
                if name in found:
                    add(name, unit, count, text)
    return list(found.values())


def _with_pages(
    part: ModelResponsePart, documents: Sequence[_Document], web: Mapping[int, _Document]
) -> ModelResponsePart:
    if not isinstance(part, TextPart) or part.citations:
        return part
    text = _CODE.sub(lambda code: " " * len(code[0]), part.content)
    own = {found[1]: found[2][:MAX_LINE] for found in _OWN_LIST.finditer(text)}
    citations: list[Citation] = []
    for found in islice(_BRACKETS.finditer(text), MAX_BRACKETS):
        before = _SENTENCES.split(text[max(0, found.start() - MAX_LINE) : found.start()].rstrip())[-1]
        named = [*_named_in(found[1], before, documents)]
        if not named and _NUMBERS.fullmatch(found[1]) and found[0][0] in "[【":
            starts_line = not text[: found.start()].rpartition("\n")[2].strip(" \t>*-")
            if not starts_line:  # there it begins a list of sources
                numbers = [number.strip() for number in found[1].split(",")]
                named = [(web[int(number)], 1) for number in numbers if int(number) in web] or [
                    one for number in numbers for one in _numbered(number, own, before, documents)
                ]
        if named:
            anchor = ContentCitationAnchor(start=found.start(), end=found.end())
            citations.append(Citation([one.source(page, before) for one, page in named], anchor=anchor))
        if len(citations) == MAX_NAMED:
            break
    return replace(part, citations=citations) if citations else part


def _numbered(
    number: str, own: Mapping[str, str], before: str, documents: Sequence[_Document]
) -> Iterator[tuple[_Document, int]]:
    """Yield what "[1]" stands for: what the model's own list says of it, or else the first document."""
    if number in own:
        line = own[number]
        named = [*_named_in(line, line, documents)]
        document = next((one for one in documents if one.name in line), None)
        yield from named or ([(document, document.best_page(before))] if document else [])
    elif not own and 1 <= int(number) <= len(documents):
        document = documents[int(number) - 1]
        yield document, document.best_page(before)


def _named_in(text: str, before: str, documents: Sequence[_Document]) -> Iterator[tuple[_Document, int]]:
    """Yield the documents and pages that a text in brackets names. `before` is the sentence before it."""
    for found in _PAGES.finditer(text):
        word = (found["word"] or "p").lower()
        unit = _UNITS.get(word) or _UNITS.get(word[:2], "page")
        for number in re.findall(r"\d+", found["numbers"] or found["other"])[:5]:
            page = int(number)
            fitting = [one for one in documents if one.unit == unit and 1 <= page <= one.count]
            named = [one for one in fitting if one.name in text] or [one for one in fitting if one.name in before]
            ranked = sorted(named or fitting, key=lambda one: one.shared(page, before), reverse=True)
            if len(ranked) == 1 or (ranked and _differs(ranked, page, before)):
                yield ranked[0], page


def _differs(ranked: Sequence[_Document], page: int, before: str) -> bool:
    """Return True if the first of these documents suits the sentence better than the second."""
    first, second = (one.shared(page, before) for one in ranked[:2])
    return first > second
