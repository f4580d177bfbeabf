"""A cited passage in its document: found in the text, and marked on the picture of a page."""

import io
from pathlib import Path
from time import process_time, thread_time
from typing import Any

import numpy
import pypdfium2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydantic_ai.messages import BinaryContent, ModelRequest, UserPromptPart

from agent.errors import InputError, NotFound
from agent.files.kinds import PDF, TEXT
from agent.files.locate import MAX_LETTERS, SearchableText, find_passage, searchable
from agent.files.parts import document_text
from agent.files.passages import Excerpt, sections_of_text
from agent.files.pdf import MARK, SIDE
from agent.files.reading import marked_page, read_document
from agent.files.references import with_references
from agent.files.store import MediaStore
from agent.history import Conversation, Entry
from agent.history.memory import MemoryStore
from agent.web.chat.cited_passages import CitedPassages
from tests.support.documents import pdf

WORDS = "The rent of the hall is 812 euros, and it is paid in May."
FILLER = "\n".join(["The committee met and approved the minutes of its last meeting."] * 20)
REPORT = pdf(["Nothing here.", f"{FILLER}\n\n{WORDS}\n\n{FILLER}", FILLER])


# --- in a text --------------------------------------------------------------------------------------------------------

SPELLINGS = {
    "same": ("before The rent is due. after", "The rent is due.", "The rent is due."),
    "white space": ("before The  rent\r\n is\tdue. after", "The rent is due.", "The  rent\r\n is\tdue."),
    "hyphen at the end of a line": ("the com-\nmittee met", "the committee met", "the com-\nmittee met"),
    "PDFium's hyphen": ("the com\ufffe\r\nmittee met", "the committee met", "the com\ufffe\r\nmittee met"),
    "hyphen that the other one has": ("a wellknown rule", "a well-known rule", "a wellknown rule"),
    "ligature": ("the \ufb01rst o\ufb03ce opens", "the first office opens", "the \ufb01rst o\ufb03ce opens"),
    "accents in two ways": ("the cafe\u0301 closes", "the caf\u00e9 closes", "the cafe\u0301 closes"),
    "quotation marks": ("he said \u201cno\u201d twice", 'he said "no" twice', "he said \u201cno\u201d twice"),
    "capitals": ("THE RENT IS DUE", "The rent is due", "THE RENT IS DUE"),
    "cut at its end": ("before The rent is due. after", "The rent is d…", "The rent is d"),
    "Chinese": ("会议室的租金\n是八百元。", "租金是八百元", "租金\n是八百元"),
    "goes on elsewhere": (f"start {WORDS[:40]}", WORDS, WORDS[:40].rstrip()),
}


@pytest.mark.parametrize("case", SPELLINGS)
def test_passage_is_found_in_other_spellings(case: str) -> None:
    text, passage, expected = SPELLINGS[case]
    found = find_passage(text, passage)
    assert found is not None
    assert text[slice(*found)].strip() == expected


@pytest.mark.parametrize("passage", ["", " … ", "The rent of the boat", "- \u2013 \u2014"])
def test_passage_that_is_not_there_is_not_found(passage: str) -> None:
    assert find_passage(f"x {WORDS}", passage) is None


@given(before=st.text(max_size=30), words=st.text("abcdefgh ", min_size=1, max_size=60), after=st.text(max_size=30))
def test_any_passage_is_found_where_it_is(before: str, words: str, after: str) -> None:
    found = find_passage(f"{before}{words}{after}", words)
    if not words.strip():
        return
    assert found is not None
    text = f"{before}{words}{after}"[slice(*found)]
    assert find_passage(text, words) == (0, len(text))


@pytest.mark.parametrize("char", ["\ufdfa", "a", "\uac00", " "], ids=["grows to 18", "same", "grows to 2", "none"])
def test_long_text_is_prepared_once_and_searched_in_bounded_time(char: str) -> None:
    """The old code took 12 s for the first of these texts, and 1.3 s for a million letters, in each search."""
    began = process_time()
    text = SearchableText(char * 2_000_000)
    assert len(text) < MAX_LETTERS + 20_000
    for passage in (char * 4_000, char * 3_000 + "b", "b" + char * 22):
        text.find(passage)
    assert process_time() - began < 2


def test_letters_of_all_pages_are_bounded_together() -> None:
    texts = searchable(["\ufdfa" * 200_000] * 20)
    assert sum(map(len, texts)) < MAX_LETTERS + 20_000
    assert texts[0].find("\ufdfa" * 3) == (0, 3)


# --- on a page --------------------------------------------------------------------------------------------------------


def marked_area(picture: bytes) -> tuple[int, int, int, int] | None:
    """Return the box around all pixels in the color of a mark."""
    with Image.open(io.BytesIO(picture)) as image:
        assert max(image.size) == SIDE
        marked = numpy.argwhere((numpy.asarray(image.convert("RGB")) == MARK).all(axis=2))
    if not len(marked):
        return None
    (top, left), (bottom, right) = marked.min(axis=0), marked.max(axis=0)
    return int(left), int(top), int(right), int(bottom)


@pytest.mark.slow
async def test_passage_is_marked_on_its_page() -> None:
    picture, is_found = await marked_page(REPORT, 1, WORDS)
    assert is_found
    area = marked_area(picture)
    assert area is not None
    left, top, right, bottom = area
    scale = SIDE / 842
    # 22 lines of 14.4 points below the first, which begins 82 points below the top of the page
    line = (842 - 760 + 21 * 14.4) * scale
    assert abs(left - 72 * scale) < 6
    assert top < line < bottom + 6
    assert bottom - top < 20 * scale, "it is one line"
    assert right > 300 * scale
    bare, is_found = await marked_page(REPORT, 1, "The boat was sold long ago.")
    assert not is_found
    assert marked_area(bare) is None


@pytest.mark.slow
async def test_mark_is_right_on_a_turned_page() -> None:
    document: Any = pypdfium2.PdfDocument(REPORT)
    document[1].set_rotation(90)
    out = io.BytesIO()
    document.save(out)
    picture, is_found = await marked_page(out.getvalue(), 1, WORDS)
    assert is_found
    area = marked_area(picture)
    assert area is not None
    left, top, right, bottom = area
    assert bottom - top > 4 * (right - left), "the line goes down the page"


REFUSED = {
    "page 4": (REPORT, 3, "has no page 4; it has 3"),
    "page 0": (REPORT, -1, "has no page 0; it has 3"),
    "locked": (pdf(["Secret"], password="x"), 0, "is protected by a password"),
    "cut off": (REPORT[:200], 0, "is damaged or cut off"),
    "no PDF": (b"%PDF-1.4 nothing", 0, "is damaged or cut off"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.slow
async def test_page_that_cannot_be_shown_has_a_reason(case: str) -> None:
    data, number, reason = REFUSED[case]
    with pytest.raises(InputError, match=reason):
        await marked_page(data, number, WORDS)


@pytest.mark.parametrize("at", range(0, len(REPORT), len(REPORT) // 12))
@pytest.mark.slow
async def test_damaged_document_gives_a_page_or_a_reason(at: int) -> None:
    damaged = REPORT[:at] + bytes(40) + REPORT[at + 40 :]
    try:
        picture, _is_found = await marked_page(damaged, 1, WORDS)
    except InputError:
        return
    assert picture.startswith(b"\x89PNG")


# --- in a conversation ------------------------------------------------------------------------------------------------

TABLE = "minutes,1\n" * 1_000 + "hall rent,812 euros\n" + "minutes,2\n" * 1_000


class Chat:
    """A stored conversation of Ann with documents, and what finds passages in it."""

    def __init__(self, folder: Path) -> None:
        self.store, self.media = MemoryStore(), MediaStore(folder)
        self.passages = CitedPassages(self.store, self.media)
        self.conversation = Conversation(owner="ann")

    async def attach(self, name: str, data: bytes, media_type: str = PDF) -> None:
        document = await read_document(data, media_type)
        read = document_text(name, document, Excerpt("...", (1,), is_whole=False))
        message = ModelRequest([UserPromptPart(["Look", BinaryContent(data, media_type=media_type), read])])
        entry = Entry(parent_id=self.conversation.head_id, message=message)
        stored = await with_references(self.media, "ann", message, f"{self.conversation.id}/{entry.id}")
        entry = Entry(id=entry.id, parent_id=self.conversation.head_id, message=stored)
        self.conversation = await self.store.save(self.conversation.extended(entry, ()), [entry])

    async def find(self, document: str, page: int | None, passage: str, owner: str = "ann") -> Any:
        return await self.passages.find(owner, self.conversation.id, document, page, passage)


@pytest.fixture
async def chat(tmp_path: Path) -> Chat:
    chat = Chat(tmp_path)
    await chat.attach("report.pdf", REPORT)
    return chat


@pytest.mark.slow
async def test_passage_is_shown_in_the_document_of_its_name(chat: Chat) -> None:
    await chat.attach("other.pdf", pdf(["Something else"]))
    found = await chat.find("report.pdf", 2, WORDS)
    assert (found.document, found.page, found.count, found.is_found, found.text) == (
        "report.pdf",
        2,
        3,
        True,
        ("",) * 3,
    )
    assert marked_area(found.picture)
    assert (await chat.find("report.pdf", None, WORDS)).page == 2, "the page is found by the passage"
    assert not (await chat.find("report.pdf", 3, WORDS)).is_found
    for missing in ("boat.pdf", ""):
        with pytest.raises(NotFound, match="no longer in the chat"):
            await chat.find(missing, 1, WORDS)


@pytest.mark.slow
async def test_newest_document_of_a_name_that_has_the_passage_is_shown(chat: Chat) -> None:
    await chat.attach("report.pdf", pdf(["Another report"] * 3))
    assert (await chat.find("report.pdf", 2, WORDS)).is_found
    newest = await chat.find("report.pdf", 2, "Nobody wrote this sentence.")
    assert not newest.is_found
    assert newest.picture == (await marked_page(pdf(["Another report"] * 3), 1, ""))[0]


async def test_other_owner_finds_nothing(chat: Chat) -> None:
    for owner in ("bob", ""):
        with pytest.raises(NotFound, match="There is no such conversation"):
            await chat.find("report.pdf", 2, WORDS, owner=owner)


async def test_deleted_file_is_no_longer_in_the_chat(chat: Chat) -> None:
    for id_ in await chat.media.files("ann"):
        await chat.media.remove_references("ann", {id_: [f"{chat.conversation.id}/{chat.conversation.head_id}"]})
    assert not await chat.media.files("ann")
    with pytest.raises(NotFound, match="no longer in the chat"):
        await chat.find("report.pdf", 2, WORDS)


async def test_page_that_is_not_there_names_the_document(chat: Chat) -> None:
    with pytest.raises(InputError, match=r"report\.pdf has no page 9; it has 3\."):
        await chat.find("report.pdf", 9, WORDS)


async def test_passage_of_a_text_has_its_context(chat: Chat) -> None:
    await chat.attach("costs.csv", TABLE.encode(), TEXT)
    sections = sections_of_text(TABLE).pages
    number = next(number for number, text in enumerate(sections, 1) if "812" in text)
    for page in (None, number, 1):
        found = await chat.find("costs.csv", page, "hall rent, 812 euros")
        assert (found.picture, found.page, found.is_found) == (b"", number, True)
        before, passage, after = found.text
        assert passage == "hall rent,812 euros"
        assert before + passage + after in sections[number - 1]
    missing = await chat.find("costs.csv", 2, "boat")
    assert (missing.is_found, missing.page, missing.text) == (False, 2, (sections[1][:3_000], "", ""))
    with pytest.raises(InputError, match=r"costs\.csv has no page 99"):
        await chat.find("costs.csv", 99, "boat")


async def test_search_in_a_long_document_leaves_the_loop_free(chat: Chat) -> None:
    """The processor time is that of the loop's thread."""
    await chat.attach("long.txt", ("The rent is due. \ufdfa\n" * 60_000).encode(), TEXT)
    await chat.find("long.txt", None, "boat")  # reads the document, which is not what is measured
    began = thread_time()
    for _ in range(5):
        assert not (await chat.find("long.txt", None, "The boat is sold, and nobody knows to whom.")).is_found
    assert thread_time() - began < 0.5


@pytest.mark.slow
async def test_page_without_a_passage_is_shown(chat: Chat) -> None:
    found = await chat.find("report.pdf", 2, "")
    assert (found.page, found.is_found, marked_area(found.picture)) == (2, True, None)
