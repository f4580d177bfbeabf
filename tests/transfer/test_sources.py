"""Cited sources: their numbers stand behind the words that cite them, in documents and links, and are no way in."""

import re
from collections.abc import AsyncIterator, Sequence
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from pydantic_ai.messages import (
    Citation,
    CitationSource,
    ContentCitationAnchor,
    DocumentCitationSource,
    ModelResponse,
    TextPart,
    WebCitationSource,
)

from agent.citations import dropped_citations
from agent.history import Entry
from agent.i18n.translator import ENGLISH, negotiate
from agent.rendering.html import html_mark
from agent.rendering.markdown import BEGIN, END
from agent.rendering.sources import Mark, Sources
from agent.transfer.document import blocks_of
from agent.transfer.export import markdown_mark, to_markdown
from agent.transfer.html import to_html
from agent.transfer.imported import FileLinks
from agent.transfer.portable import renewed
from agent.transfer.shared import NOT_INCLUDED, shared_entries
from tests.support.history_stores import chain, prompt

RAIN = WebCitationSource("https://www.rain.example/köln?a=1&b=(2)", title="Rain", excerpts=["It rained."])
NOTES = DocumentCitationSource(document_id="file-secret", title="notes.pdf", excerpts=["Bring an umbrella."])
HOSTILE = '"><script>run()</script></li> ](javascript:run) <img src=x onerror=run()> `$|\u202e'


def number(mark: Mark) -> str:
    return f"[{mark.number}]"


def cited(text: str, about: str, *sources: CitationSource) -> Citation:
    """Return the citation of the words `about` in the text."""
    start = text.index(about)
    return Citation(list(sources), anchor=ContentCitationAnchor(start=start, end=start + len(about)))


def branch(text: str, *citations: Citation) -> list[Entry]:
    return chain(prompt("Did it rain?"), ModelResponse([TextPart(text, citations=list(citations))], model_name="m"))


async def page_of(entries: Sequence[Entry]) -> str:
    async def no_file(_: str) -> AsyncIterator[str]:
        return
        yield ""

    blocks = [*blocks_of(entries, ENGLISH, html_mark)]
    page = "".join([piece async for piece in to_html("Rain", "", blocks, no_file, ENGLISH)])
    return page[page.index("<main>") :]


@pytest.mark.parametrize(
    ("text", "about", "marked"),
    [
        ("It rained. Then not.", "It rained.", "It rained.[1] Then not."),
        ("It **rained** a lot.", "rained", "It **rained**[1] a lot."),
        ("It rained \n\nHere.", "It rained \n\n", "It rained[1] \n\nHere."),
        ("See [the site](https://a.example/b_(c)) now.", "the site", "See [the site](https://a.example/b_(c))[1] now."),
        ("See [it][1] now.\n\n[1]: https://a.example", "[it]", "See [it][1][1] now.\n\n[1]: https://a.example"),
        ("Run `make all` now.", "make", "Run `make all`[1] now."),
        ("So $a + b$ is it.", "$a +", "So $a + b$[1] is it."),
        ("Words.\n\n```\ncode\n```\n\nMore.", "code", "Words.[1]\n\n```\ncode\n```\n\nMore."),
        ("| a | b |\n|---|---|\n| wet | dry |", "| wet |", "| a | b |\n|---|---|\n| wet[1] | dry |"),
        ("- wet\n- dry", "wet\n- dry", "- wet\n- dry[1]"),
        ("# Rain\n\nWords.", "Rain", "# Rain[1]\n\nWords."),
        ("> wet\n> days\n\nEnd.", "wet\n> days", "> wet\n> days[1]\n\nEnd."),
    ],
)
def test_number_stands_behind_the_words(text: str, about: str, marked: str) -> None:
    assert Sources().mark(text, [cited(text, about, RAIN)], number) == marked


@pytest.mark.parametrize(("start", "end"), [(0, 1), (90, 99), (3, 99)])
def test_any_position_has_a_place(start: int, end: int) -> None:
    citation = Citation([RAIN], anchor=ContentCitationAnchor(start=start, end=end))
    sources = Sources()
    assert sources.mark("Wet.", [citation], number).replace("[1]", "") == "Wet."
    assert len([*sources]) == 1


MARKDOWN = st.lists(
    st.sampled_from(
        ["word ", "*", "**", "`", "```\n", "\n", "\n\n", "| ", "|---|\n", "[a](b)", "$x$", "$$", "- ", "> ", "<b>"]
    ),
    max_size=30,
).map("".join)


@given(MARKDOWN, st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60)), max_size=5))
def test_marks_change_nothing_else(text: str, spans: list[tuple[int, int]]) -> None:
    """Without the marks it is the same text, and code stays the same code."""
    anchors = [ContentCitationAnchor(start=start, end=start + length) for start, length in spans]
    marked = Sources().mark(text, [Citation([RAIN], anchor=one) for one in anchors], lambda _: "\ufdd0")
    assert marked.replace("\ufdd0", "") == text
    code = [token.content for token in MarkdownIt().parse(marked) if token.type in ("fence", "code_block")]
    assert not any("\ufdd0" in one for one in code)


def test_sources_are_numbered_as_they_are_cited() -> None:
    text = "One. Two. Three."
    sources = Sources()
    citations = [cited(text, "Three.", RAIN), cited(text, "One.", NOTES, RAIN), cited(text, "Two.", RAIN)]
    assert sources.mark(text, citations, number) == "One.[1][2] Two.[2] Three.[2]"
    assert [(one.number, one.title, str(one.place)) for one in sources] == [
        (1, "notes.pdf", ""),
        (2, "Rain", "rain.example"),
    ]
    assert sources.mark(text, citations, number) == "One.[1][2] Two.[2] Three.[2]"
    assert [len(one.passages) for one in sources] == [1, 1]


@pytest.mark.parametrize(
    "url", ["javascript:run()", "data:text/html,x", "//evil.example", "file:///etc/passwd", "http://", ""]
)
def test_other_addresses_are_no_sources(url: str) -> None:
    sources = Sources()
    assert sources.mark("Wet.", [cited("Wet.", "Wet.", WebCitationSource(url, title="x"))], number) == "Wet."
    assert not sources


def test_lookalike_letters_are_seen_in_the_address() -> None:
    sources = Sources()
    sources.mark("Wet.", [cited("Wet.", "Wet.", WebCitationSource("https://www.g\u043eogle.com/a b"))], number)
    [source] = sources
    assert source.url == "https://www.xn--gogle-jye.com/a%20b"
    assert source.title == "xn--gogle-jye.com"


class _Tags(HTMLParser):
    """The tags of a page with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found = list[tuple[str, dict[str, str | None]]]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


async def test_page_has_numbers_and_a_list() -> None:
    text = "It rained. Bring one."
    page = await page_of(branch(text, cited(text, "rained", RAIN), cited(text, "Bring one.", NOTES)))
    links = [attributes for tag, attributes in _Tags(page).found if tag == "a"]
    assert links == 2 * [{"href": "https://www.rain.example/k%C3%B6ln?a=1&b=%282%29", "rel": "noopener noreferrer"}]
    assert [*re.findall(r"\[(\d)\]", page)] == ["1", "2"]
    assert "<h3>Sources</h3>" in page
    for shown in ("<bdi>Rain</bdi>", "<span>rain.example</span>", "<bdi>It rained.</bdi>", "<bdi>notes.pdf</bdi>"):
        assert shown in page


async def test_nothing_of_a_source_becomes_markup() -> None:
    sources = [
        WebCitationSource(f"https://evil.example/{HOSTILE}", title=HOSTILE, excerpts=[HOSTILE]),
        DocumentCitationSource(title=HOSTILE, excerpts=[HOSTILE]),
    ]
    text = f"Wet. ![pic][r] {{{BEGIN}7 javascript:run(){END}\n\n[r]: https://a.example"
    entries = branch(text, cited(text, "Wet.", *sources), cited(text, "![pic", *sources))
    page = await page_of(entries)
    for tag, attributes in _Tags(page).found:
        assert tag not in ("script", "img"), tag
        assert not [name for name in attributes if name.startswith("on")]
        assert not (attributes.get("href") or "https:").startswith("javascript")
    assert "\u202e" not in page
    assert "[7]" not in page, "no text becomes a number"
    markdown = MarkdownIt().parse(
        "".join(to_markdown("Rain", "", blocks_of(entries, ENGLISH, markdown_mark), {}, ENGLISH))
    )
    inner = [child for token in markdown for child in token.children or ()]
    assert not [one for one in (*markdown, *inner) if one.type.startswith("html")]
    urls = {str(one.attrGet("href")) for one in inner if one.type == "link_open"}
    assert {url.split("/")[2] for url in urls} == {"evil.example"}


def test_markdown_has_numbers_and_a_list() -> None:
    text = "It rained."
    entries = branch(text, cited(text, "rained", RAIN, NOTES))
    german = negotiate("de")
    written = "".join(to_markdown("Rain", "", blocks_of(entries, german, markdown_mark), {}, german))
    url = "https://www.rain.example/k%C3%B6ln?a=1&b=%282%29"
    assert f"It rained[\\[1\\]]({url})\\[2\\]." in written
    assert f"**Quellen**\n\n1. [Rain]({url}) (rain.example)\n\n   > It rained.\n\n2. notes.pdf\n" in written
    items = [token for token in MarkdownIt().parse(written) if token.type == "list_item_open"]
    assert [token.info for token in items] == ["1", "2"]


def test_numbers_continue_over_the_texts_of_an_answer() -> None:
    entries = chain(
        prompt("Did it rain?"),
        ModelResponse([TextPart("Wet. ", citations=[cited("Wet. ", "Wet.", NOTES)])]),
        ModelResponse([TextPart("Dry.", citations=[cited("Dry.", "Dry.", RAIN, NOTES)])]),
        prompt("And then?"),
        ModelResponse([TextPart("Snow.", citations=[cited("Snow.", "Snow.", RAIN)])]),
    )
    blocks = [*blocks_of(entries, ENGLISH, number)]
    texts = [block.text for block in blocks if block.type == "text"]
    assert texts == ["Did it rain?", "Wet.[1] Dry.[2][1]", "And then?", "Snow.[1]"]
    assert [len(block.sources) for block in blocks if block.type == "sources"] == [2, 1]


@pytest.mark.parametrize("with_files", [False, True])
def test_link_has_the_sources_without_what_it_hides(with_files: bool) -> None:
    text = "It rained."
    shared = [*shared_entries(branch(text, cited(text, "rained", RAIN, NOTES)), ENGLISH, with_files=with_files)]
    [sources] = [block.sources for block in blocks_of(shared, ENGLISH, number) if block.type == "sources"]
    assert (sources[0].title, sources[0].passages) == ("Rain", ["It rained."])
    assert sources[1].title == ("notes.pdf" if with_files else str(NOT_INCLUDED))
    assert sources[1].passages == (["Bring an umbrella."] if with_files else [])
    assert "file-secret" not in str(shared)


def test_import_drops_and_counts_citations_that_point_nowhere() -> None:
    bad = [WebCitationSource("javascript:run()"), RAIN]
    citations = [
        Citation([one], anchor=ContentCitationAnchor(start=0, end=end)) for one, end in zip(bad, (3, 99), strict=True)
    ]
    entries = branch("It rained.", *citations, cited("It rained.", "rained", RAIN))
    *_, imported = renewed(entries, FileLinks(lambda _: None))
    part = imported.message.parts[0]
    assert isinstance(part, TextPart)
    assert part.citations == [cited("It rained.", "rained", RAIN)]
    assert dropped_citations([imported.message]) == 2
