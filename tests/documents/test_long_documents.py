"""A document that is too long for a model: tools read it, or each new question gets passages of its own."""

import json
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pillow
from pydantic_ai.messages import BinaryContent, ModelRequest, ToolCallPart, UserPromptPart

from agent import Agent, Chat, Endpoint, ModelSpec, ask_user, connect, tool
from agent.errors import ProviderError
from agent.files.for_model import document_room, fit_documents
from agent.files.kinds import PDF, Document
from agent.files.long_documents import LongDocument, long_documents
from agent.files.parts import quoted_file
from agent.files.passages import sections_of_text
from agent.result import RunResult
from agent.tools.documents import MAX_RESULT_BYTES, document_tools, with_document_tools
from agent.tools.function_tools import execute
from agent.web.chat.choices import Choices
from agent.web.chat.conversations import Conversations
from agent.web.chat.visitor import Visitor
from tests.support.documents import pdf, workbook
from tests.support.embeddings import hashed_vectors
from tests.support.scripted_server import Config, Running, running
from tests.support.views import chats_of, html_of, settle, view_of

WITH_TOOLS = ModelSpec(id="vllm:small", name="small", label="Small", provider="vllm", context_tokens=8_192)
WITHOUT = replace(WITH_TOOLS, tools="none")
FILLER = "\n".join(["The committee met and approved the minutes of its last meeting."] * 40)
FACTS = {7: "The rent of the hall is 812 euros.", 30: "Boat bought for 95 crowns."}
ANN, BOB = Visitor(owner="ann"), Visitor(owner="bob")
SERVER = Config(rate=0, models=("small",))
READ_30 = '!tool read_pages {"file": "report.pdf", "from": 30, "to": 30} !text Read.'


@cache
def report_data() -> bytes:
    """Return the report as a PDF."""
    return pdf([f"Chapter {n}\n{FILLER}\n{FACTS.get(n, '')}" for n in range(1, 42)])


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "report.pdf"
    path.write_bytes(report_data())
    return path


def agent_for(server: Running, spec: ModelSpec = WITH_TOOLS, tools: Any = ()) -> Agent:
    return Agent(connect(spec, Endpoint(server.base_url)), tools=tools)


def offered(server: Running) -> dict[str, str]:
    """Return the names and descriptions of the tools in the last request."""
    tools = server.journal()[-1]["body"].get("tools", [])
    return {one["function"]["name"]: one["function"]["description"] for one in tools}


def sent(server: Running, number: int = -1) -> str:
    """Return the content of a message in the last request, as text."""
    return json.dumps(server.journal()[-1]["body"]["messages"][number]["content"], ensure_ascii=False)


# --- the tools --------------------------------------------------------------------------------------------------------


def documents_of(*documents: tuple[str, Document]) -> list[LongDocument]:
    def one(name: str, document: Document) -> LongDocument:
        async def read() -> Document:
            return document

        return LongDocument(name, document.unit, len(document.pages), read)

    return [one(*each) for each in documents]


TWO = documents_of(
    ("report.pdf", Document(PDF, "", tuple(f"Chapter {n}\n{FILLER}\n{FACTS.get(n, '')}" for n in range(1, 42)))),
    ("notes.pdf", Document(PDF, "", ("会议室的租金是八百一十二欧元。", "Nothing else."))),
)


async def call(name: str, documents: list[LongDocument] = TWO, spec: ModelSpec = WITH_TOOLS, **given: object) -> Any:
    tools = {one.name: one for one in document_tools(documents, spec)}
    return await execute(tools, ToolCallPart(name, given), timeout=30)


def test_documents_add_tools_for_a_model_that_calls_only() -> None:
    """A model without tools would be asked with them, and its answer would note that they were left out."""
    assert [*with_document_tools({}, TWO, WITH_TOOLS)] == ["search_files", "read_pages"]
    assert [*with_document_tools({}, TWO, WITHOUT)] == []
    assert [*with_document_tools({}, [], WITH_TOOLS)] == []


async def test_search_names_file_and_pages() -> None:
    found = await call("search_files", query="price of the boat")
    assert found.outcome == "success"
    assert found.content.startswith("report.pdf, from page")
    assert "[Page 30]" in found.content
    assert "95 crowns" in found.content
    chinese = await call("search_files", query="租金多少")
    assert chinese.content.startswith("notes.pdf, from pages 1-2 of 2:\n[Page 1]\n会议室的租金")


async def test_search_without_a_hit_says_so() -> None:
    found = await call("search_files", query="zeppelin")
    assert found.content == (
        "No passage has a word of 'zeppelin': the files are report.pdf (pages 1-41), notes.pdf (pages 1-2)."
    )


WRONG = {
    "no such file": ({"file": "other.pdf", "from": 1, "to": 2}, "There is no file 'other.pdf'"),
    "no such page": ({"file": "report.pdf", "from": 40, "to": 50}, "report.pdf has no pages 40 to 50"),
    "backwards": ({"file": "report.pdf", "from": 4, "to": 3}, "report.pdf has no pages 4 to 3"),
    "page 0": ({"file": "report.pdf", "from": 0, "to": 3}, "report.pdf has no pages 0 to 3"),
    "no numbers": ({"file": "report.pdf"}, "The first and the last page must be whole numbers"),
    "no arguments": ({}, "There is no file ''"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_wrong_name_or_range_names_the_files(case: str) -> None:
    given, sentence = WRONG[case]
    found = await call("read_pages", **given)
    assert found.outcome == "failed"
    assert found.content == f"{sentence}: the files are report.pdf (pages 1-41), notes.pdf (pages 1-2)."


async def test_results_are_bounded_and_can_be_read_on() -> None:
    seen: list[int] = []
    first = 1
    while first <= 41:
        found = await call("read_pages", file="REPORT.pdf", **{"from": first, "to": "41"})
        assert found.outcome == "success"
        assert len(found.content.encode()) < 3_500
        pages = [n for n in range(1, 42) if f"[Page {n}]" in found.content]
        seen += pages
        assert pages[0] == first
        first = pages[-1] + 1
        assert (f"read on from {first}" in found.content) or first == 42 or "Cut:" in found.content
    assert seen == list(range(1, 42))
    for query in ("committee", "the minutes of the last meeting"):
        assert len((await call("search_files", query=query)).content.encode()) < 3_500
    assert (
        len((await call("search_files", query="committee", spec=replace(WITH_TOOLS, context_tokens=1))).content) < 900
    )


async def test_page_that_is_too_long_is_cut_with_a_sentence() -> None:
    sheet = documents_of(("numbers.pdf", Document(PDF, "", ("x" * 50_000,))))
    for spec, most in ((WITH_TOOLS, 3_500), (replace(WITH_TOOLS, context_tokens=1_000_000), MAX_RESULT_BYTES + 200)):
        found = await call("read_pages", sheet, file="numbers.pdf", spec=spec, **{"from": 1, "to": 1})
        assert "Cut: this page is too long for one result." in found.content
        assert len(found.content) < most


@pytest.mark.slow
async def test_documents_of_one_name_get_different_names() -> None:
    first, other = report_data(), pdf([f"{FILLER}\nA second report." for _ in range(30)])
    files = [BinaryContent(data, media_type=PDF, identifier="report.pdf") for data in (first, other, first)]
    short = BinaryContent(b"812 euros", media_type="text/plain", identifier="short.txt")
    messages = [ModelRequest([UserPromptPart([file, short])]) for file in files]
    found = await long_documents(messages, WITH_TOOLS)
    assert [one.described for one in found] == ["report.pdf (pages 1-41)", "report (2).pdf (pages 1-30)"]
    assert "A second report." in (await found[1].read()).pages[0]


async def test_search_joins_words_and_vectors() -> None:
    class Nearest:
        """Vectors for which the last texts are the nearest ones."""

        async def name(self) -> str:
            return "small"

        async def nearest(self, texts: Sequence[str], query: str, most: int) -> Sequence[int]:
            if query == "fails":
                raise ProviderError("the server is away", kind="connection")
            return [*reversed(range(len(texts)))][:most]

    async def found(query: str, vectors: Nearest | None) -> str:
        tools = {one.name: one for one in document_tools(TWO, WITH_TOOLS, vectors)}
        return (await execute(tools, ToolCallPart("search_files", {"query": query}), timeout=30)).content

    assert "notes.pdf" not in await found("price of the boat", None)
    both = await found("price of the boat", Nearest())
    assert "95 crowns" in both
    assert "Nothing else." in both, "it has no word of the query"
    assert "Nothing else." in await found("zeppelin", Nearest())
    failed = await found("fails", Nearest())
    assert failed.startswith("No passage has a word of 'fails'")
    assert "[Found by keywords alone, because there are no vectors of the texts now: the server is away]" in failed


@pytest.mark.slow
async def test_chat_with_embeddings_gives_them_to_the_tool(report: Path) -> None:
    with running(Config(rate=0, models=("small",), embed=hashed_vectors)) as server:
        async with Chat(agent_for(server), embeddings=server.base_url) as chat:
            await chat.ask(['!tool search_files {"query": "boats"} !text Found.', report])
            assert "about something" in offered(server)["search_files"]
            assert ["boats"] in server.server.embedded


# --- the package ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_model_with_tools_gets_them_for_a_long_document(server: Running, report: Path) -> None:
    agent = agent_for(server)
    result = await agent.ask(['!tool search_files {"query": "boat bought"} !text Found.', report])
    assert result.text.startswith("Found.")
    assert set(offered(server)) == {"search_files", "read_pages"}
    assert all("report.pdf (pages 1-41)" in text for text in offered(server).values())
    assert "95 crowns" in sent(server)
    later = await agent.ask(READ_30, context=result.context)
    assert later.finish_reason == "stop"
    assert "report.pdf, page 30 of 41:" in sent(server)
    assert "95 crowns" in sent(server)


@pytest.mark.slow
async def test_workbook_is_read_by_sheets(server: Running, tmp_path: Path) -> None:
    rows = [[n, "minutes of the committee", "approved"] for n in range(300)]
    (tmp_path / "costs.xlsx").write_bytes(workbook(May=rows, June=[*rows, ["hall rent", 812, "euros"]]))
    asked = '!tool search_files {"query": "hall rent"} !text Found.'
    await agent_for(server).ask([asked, tmp_path / "costs.xlsx"])
    assert "costs.xlsx (sheets 1-2)" in offered(server)["read_pages"]
    assert "costs.xlsx, from sheet 2 of 2:" in sent(server)


@pytest.mark.slow
async def test_own_tool_of_the_name_stays(server: Running, report: Path) -> None:
    @tool
    def search_files(query: str) -> str:
        """Search my own files."""
        return f"mine: {query}"

    await agent_for(server, tools=[search_files]).ask(['!tool search_files {"query": "x"} !text Done.', report])
    assert "mine: x" in sent(server)


@pytest.mark.slow
async def test_suspended_run_resumes_with_the_tools(server: Running, report: Path) -> None:
    agent = agent_for(server, tools=[ask_user])
    script = '!tool ask_user {"question": "Which page?"} ' + READ_30
    result = await agent.ask([script, report])
    assert result.finish_reason == "suspended"
    resumed = await agent.resume(result.suspension or "", "30")
    assert resumed.text.startswith("Read.")
    assert "95 crowns" in sent(server)


@pytest.mark.slow
async def test_follow_up_without_tools_gets_new_passages(server: Running, report: Path) -> None:
    agent = agent_for(server, WITHOUT)
    first = await agent.ask(["!text A. What is the rent of the hall?", report])
    before = sent(server)
    assert "812 euros" in before
    assert "95 crowns" not in before
    second = await agent.ask("!text B. What did the boat cost?", context=first.context)
    assert not offered(server)
    assert sent(server, 0) == before, "the server's cache of earlier turns stays valid"
    assert "Text of the document report.pdf (PDF, 41 pages); only passages" in sent(server)
    assert "95 crowns" in sent(server)
    assert len(sent(server)) < 4_000
    after = sent(server)
    await agent.ask("!text Zeppelin", context=second.context)
    assert sent(server) == '"!text Zeppelin"', "no passage has a word of it"
    assert sent(server, 2) == after


# --- the page ---------------------------------------------------------------------------------------------------------


@pytest.fixture
async def page(server: Running, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Conversations]:
    """A page with `WITH_TOOLS`, or with the model that is the fixture's parameter."""
    made = chats_of(server.base_url, tmp_path, getattr(request, "param", WITH_TOOLS))
    yield made
    await made.aclose()


async def say(
    page: Conversations, text: str, conversation: str | None = None, files: tuple[Path, ...] = (), *, tools: bool
) -> str:
    """Send a message, wait for the end of its answer, and return the conversation."""
    value = {"text": text, "files": [str(file) for file in files]}
    live = await page.send(ANN, conversation, value, Choices(tools=tools))
    assert live is not None
    await settle(page)
    return live.conversation_id


@pytest.mark.slow
async def test_page_offers_the_tools_in_this_conversation_only(
    page: Conversations, server: Running, report: Path
) -> None:
    chat = await say(page, "!text First.", files=(report,), tools=True)
    assert set(offered(server)) == {"search_files", "read_pages"}
    await say(page, READ_30, chat, tools=True)
    assert "report.pdf, page 30 of 41:" in sent(server)
    await say(page, "!text Another.", tools=True)
    assert not offered(server)


@pytest.mark.slow
async def test_document_of_a_turn_that_was_left_out_is_read(page: Conversations, server: Running, report: Path) -> None:
    chat = await say(page, "!text First.", files=(report,), tools=True)
    for number in range(3):
        await say(page, f"!text Turn {number}. {'Many words. ' * 700}", chat, tools=True)
    await say(page, READ_30, chat, tools=True)
    assert "Text of the document" not in json.dumps(server.journal()[-1]["body"]["messages"])
    assert "95 crowns" in sent(server)


@pytest.mark.slow
async def test_retry_and_edit_keep_the_tools(page: Conversations, server: Running, report: Path) -> None:
    chat = await say(page, "!text First.", files=(report,), tools=True)
    await say(page, READ_30, chat, tools=True)
    message = await last_message(page, chat)
    await page.retry(ANN, chat, message, Choices(tools=True))
    await settle(page)
    assert "95 crowns" in sent(server)
    message = await last_message(page, chat)
    await page.edit(ANN, chat, message, READ_30.replace("30", "7"), Choices(tools=True))
    await settle(page)
    assert "report.pdf, page 7 of 41:" in sent(server)


@pytest.mark.slow
async def test_follow_up_on_the_page_gets_new_passages(page: Conversations, server: Running, report: Path) -> None:
    chat = await say(page, "!text A. What is the rent of the hall?", files=(report,), tools=False)
    first = sent(server, -1)
    await say(page, "!text B. What did the boat cost?", chat, tools=False)
    assert not offered(server)
    assert "95 crowns" in sent(server)
    assert sent(server, -3) == first
    last = (await view_of(page, "ann", chat)).turns[-1]
    assert "Text read from report.pdf: page" in html_of(last["bubbles"][0])
    message = await last_message(page, chat)
    await page.edit(ANN, chat, message, "!text C. And the rent of the hall?", Choices())
    await settle(page)
    assert "812 euros" in sent(server)
    assert "95 crowns" not in sent(server)


# --- text files in the package ----------------------------------------------------------------------------------------


LINES = "committee,minutes\n" * 4_000
TABLE = f"{LINES}hall rent,812\n{LINES}boat,95 crowns\n{LINES}"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "costs.csv"
    path.write_text(TABLE)
    return path


def prompt_of(result: RunResult) -> Any:
    """Return the content of the first prompt of a conversation."""
    part = result.context.messages[0].parts[0]
    assert isinstance(part, UserPromptPart)
    return part.content


@pytest.mark.slow
async def test_long_text_file_in_a_prompt_brings_the_tools(server: Running, table: Path) -> None:
    agent = agent_for(server)
    result = await agent.ask(['!tool search_files {"query": "hall rent"} !text Found.', table])
    assert set(offered(server)) == {"search_files", "read_pages"}
    count = len(sections_of_text(TABLE).pages)
    assert all(f"costs.csv (sections 1-{count})" in text for text in offered(server).values())
    assert "hall rent,812" in sent(server)
    assert len(json.dumps(server.journal()[-1]["body"])) < len(TABLE) / 10, "the file itself is not sent"
    again = '!tool search_files {"query": "how many crowns"} !text Found.'
    await agent.ask(again, context=result.context)
    assert "95 crowns" in sent(server)
    assert quoted_file("costs.csv", TABLE) in prompt_of(result), "it is kept for models that can read more"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["path", "alone", "bytes"])
async def test_model_without_tools_gets_passages_of_a_text_file(server: Running, table: Path, way: str) -> None:
    agent = agent_for(server, WITHOUT)
    asked = "!text A. What is the hall rent?"
    given = BinaryContent(TABLE.encode(), media_type="text/csv", identifier="costs.csv") if way == "bytes" else table
    first = await agent.ask(given if way == "alone" else [asked, given])
    before = sent(server)
    assert "Text of the document costs.csv (text, " in before
    assert len(before) < len(TABLE) / 10
    assert ("hall rent,812" in before) == (way != "alone")
    assert not offered(server)
    await agent.ask("!text B. How many crowns was the boat?", context=first.context)
    assert sent(server, 0) == before, "the server's cache of earlier turns stays valid"
    assert "95 crowns" in sent(server)


@pytest.mark.slow
async def test_long_text_file_has_no_passages_of_earlier_ones(server: Running, report: Path, table: Path) -> None:
    agent = agent_for(server, WITHOUT)
    first = await agent.ask(["!text A. What did the boat cost?", report])
    await agent.ask(["!text B. What did the boat cost?", table], context=first.context)
    assert "costs.csv" in sent(server)
    assert "report.pdf" not in sent(server)


@pytest.mark.slow
async def test_text_files_that_fit_are_sent_unchanged(server: Running, tmp_path: Path) -> None:
    for name in ("a.md", "b.py"):
        (tmp_path / name).write_text(f"# {name}\n" + "x = 1\n" * 300)
    prompt = ["!text Read.", tmp_path / "a.md", tmp_path / "b.py"]
    result = await agent_for(server).ask(prompt)
    assert not offered(server)
    content = server.journal()[-1]["body"]["messages"][-1]["content"]
    assert str(content).count("x = 1") == 600
    assert quoted_file("a.md", (tmp_path / "a.md").read_text()) in prompt_of(result)
    assert "Text of the document" not in str(content)


@pytest.mark.slow
async def test_text_files_that_fit_only_alone_share_the_room(server: Running, tmp_path: Path) -> None:
    room = document_room(WITHOUT)
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.txt").write_text(f"{name}\n" * (room // (10 if name == "a" else 4)))
    await agent_for(server, WITHOUT).ask(["!text Read.", *(tmp_path / f"{name}.txt" for name in "abc")])
    content = server.journal()[-1]["body"]["messages"][-1]["content"]
    texts = [one["text"] for one in content] if isinstance(content, list) else [content]
    assert "a\n" * (room // 10) in "".join(texts), "the smallest file is sent whole"
    assert len("".join(texts).encode()) < room * 1.1
    assert "Text of the document c.txt" in "".join(texts)


@pytest.mark.slow
async def test_text_file_of_too_many_characters_is_refused(server: Running, tmp_path: Path) -> None:
    (tmp_path / "huge.txt").write_text("one line\n" * 250_000)
    asked = len(server.journal())
    result = await agent_for(server).ask(["!text Read.", tmp_path / "huge.txt"])
    assert result.finish_reason == "error"
    assert "it has more than 2,000,000 characters of text" in result.why
    assert len(server.journal()) == asked


# --- text files on the page -------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_long_text_file_brings_the_tools(page: Conversations, server: Running, table: Path) -> None:
    chat = await say(page, '!tool search_files {"query": "hall rent"} !text Found.', files=(table,), tools=True)
    described = re.findall(r"costs\.csv \(sections 1-(\d+)\)", str(offered(server)))
    assert len(described) == 2
    assert "costs.csv, from section" in sent(server)
    assert "hall rent,812" in sent(server)
    sections = sections_of_text(TABLE).pages
    number = next(number for number, text in enumerate(sections, 1) if "95 crowns" in text)
    assert int(described[0]) == len(sections)
    read = json.dumps({"file": "costs.csv", "from": number, "to": number})
    await say(page, f"!tool read_pages {read} !text Read.", chat, tools=True)
    assert f"costs.csv, section {number} of {len(sections)}:" in sent(server)
    assert "boat,95 crowns" in sent(server)


@pytest.mark.slow
async def test_long_html_file_is_read_without_its_tags(page: Conversations, server: Running, tmp_path: Path) -> None:
    rows = "<p class='minutes'>The committee met.</p>\n" * 2_000
    (tmp_path / "page.html").write_text(f"<body>{rows}<p>The <b>hall</b> rent is 812.</p>{rows}</body>")
    chat = await say(page, "!text First.", files=(tmp_path / "page.html",), tools=True)
    await say(page, '!tool search_files {"query": "hall rent"} !text Found.', chat, tools=True)
    assert "page.html, from section" in sent(server)
    assert "The hall rent is 812." in sent(server)
    assert "class=" not in sent(server)
    [id_] = await page.media.files(ANN.owner)
    assert id_.endswith(".txt"), "the browser gets it as plain text"


@pytest.mark.slow
@pytest.mark.parametrize("page", [replace(WITH_TOOLS, image=True)], indirect=True)
async def test_text_of_a_file_is_not_taken_for_that_of_a_picture(
    page: Conversations, server: Running, table: Path, tmp_path: Path
) -> None:
    Pillow.new("RGB", (4, 4), "red").save(tmp_path / "red.png")
    chat = await say(page, "!text A. What is the hall rent?", files=(tmp_path / "red.png", table), tools=False)
    assert "image_url" in sent(server)
    await page.edit(ANN, chat, await last_message(page, chat), "!text B. The crowns of the boat?", Choices())
    await settle(page)
    assert "image_url" in sent(server)
    assert "95 crowns" in sent(server)


async def last_message(page: Conversations, chat: str) -> str:
    return (await view_of(page, "ann", chat)).turns[-1]["id"]


async def test_passages_of_an_earlier_message_are_ranked_once() -> None:
    document = await TWO[0].read()
    first = await fit_documents([document], "What did the boat cost?", 9_000)
    again = await fit_documents([document], "What did the boat cost?", 9_000)
    other = await fit_documents([document], "What is the rent?", 9_000)
    assert first[0] is again[0]
    assert first != other
