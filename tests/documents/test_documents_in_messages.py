"""A document reaches a model as the file, as its text, or as passages of it: from a prompt and from the composer."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import BinaryContent, ModelMessage, ModelRequest, UserPromptPart

from agent import Agent, Endpoint, InputError, ModelSpec, connect
from agent.files.kinds import DOCX, PDF
from agent.files.parts import extracted_text_of
from agent.messages.adapt import adapt
from agent.models.catalog import load_catalog
from agent.web.chat.attachments import message_parts, plan_attachments
from agent.web.chat.choices import Choices
from agent.web.chat.conversations import Conversations
from agent.web.chat.visitor import Visitor
from agent.web.ui.components import render_attachments
from tests.support.documents import pdf, scanned_pdf, word
from tests.support.known_texts import picture_of_text
from tests.support.scripted_server import Config, Running
from tests.support.views import chats_of, settle, view_of

pytestmark = pytest.mark.slow

SMALL = ModelSpec(id="vllm:small", name="small", label="Small", provider="vllm", context_tokens=8_192)
FILLER = "\n".join(["The committee met and approved the minutes of its last meeting."] * 40)
SHORT = pdf(["Costs", "The rent of the hall is 812 euros."], title="Hall")
LONG = pdf(
    [f"Chapter {n}\n{FILLER}" + ("\nThe rent of the hall is 812 euros." if n == 7 else "") for n in range(1, 42)]
)
LETTER = word(("Costs", "The rent of the hall is 812 euros."))
ANN = Visitor(owner="ann")
SERVER = Config(rate=0, models=("small",))


def claude() -> ModelSpec:
    """Return a model that reads PDF files itself."""
    return next(spec for spec in load_catalog().models.values() if spec.dialect == "messages")


def last_content(server: Running) -> str:
    """Return the content of the last message in the last request, as text."""
    return json.dumps(server.journal()[-1]["body"]["messages"][-1]["content"], ensure_ascii=False)


# --- the package ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "data"), [("hall.pdf", SHORT), ("hall.docx", LETTER)], ids=["pdf", "docx"])
async def test_file_in_a_prompt_is_read(server: Running, tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    agent = Agent(connect(SMALL, Endpoint(server.base_url)))
    result = await agent.ask(["What does it cost?", tmp_path / name])
    assert result.finish_reason == "stop"
    assert f"Text of the document {name} (" in last_content(server)
    assert "812 euros" in last_content(server)


async def test_long_file_in_a_prompt_is_cut_to_passages(server: Running) -> None:
    agent = Agent(connect(SMALL, Endpoint(server.base_url)))
    prompt = ["What is the rent of the hall?", BinaryContent(LONG, media_type=PDF)]
    first = await agent.ask(prompt)
    content = last_content(server)
    assert "812 euros" in content
    assert "PDF, 41 pages); only passages that suit the question" in content
    assert len(content) < 20_000
    await agent.ask("And now?", context=first.context)
    earlier = server.journal()[-1]["body"]["messages"][0]["content"]
    assert json.dumps(earlier, ensure_ascii=False) == content, "the server's cache of earlier turns stays valid"


async def test_locked_file_in_a_prompt_is_refused(server: Running) -> None:
    agent, asked = Agent(connect(SMALL, Endpoint(server.base_url))), len(server.journal())
    locked = BinaryContent(pdf(["Secret"], password="p"), media_type=PDF)
    result = await agent.ask(["What does it say?", locked])
    assert result.finish_reason == "error"
    assert "Small cannot read a file of the kind application/pdf: it is protected by a password" in result.note.detail
    assert len(server.journal()) == asked


# --- the composer -----------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """The paths of some documents, by name."""
    contents = {
        "short.pdf": SHORT,
        "long.pdf": LONG,
        "letter.docx": LETTER,
        "scan.pdf": scanned_pdf(picture_of_text("Invoice")),
        "locked.pdf": pdf(["Secret"], password="p"),
        "cut.docx": LETTER[:900],
        "long.csv": b"committee,minutes\n" * 4_000 + b"hall rent,812\n" + b"committee,minutes\n" * 4_000,
        "empty.html": b"<p></p>\n" * 8_000,
    }
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    return {name: tmp_path / name for name in contents}


PLANS = {
    "short.pdf": ("converted", "2 pages, read as text"),
    "long.pdf": ("converted", "41 pages, read as text. Too long for Small, which gets the passages that suit the"),
    "letter.docx": ("converted", "1 section, read as text"),
    "scan.pdf": ("refused", "scan.pdf shows only pictures, such as scans, and has no text."),
    "locked.pdf": ("refused", "locked.pdf is protected by a password. Attach a copy without it."),
    "cut.docx": ("refused", "cut.docx is damaged or cut off: it can't be read as DOCX."),
    "long.csv": ("converted", "37 sections, read as text. Too long for Small"),
    "empty.html": ("refused", "empty.html has no text"),
}


@pytest.mark.parametrize("name", PLANS)
async def test_plan_says_how_a_document_is_handled(files: dict[str, Path], name: str) -> None:
    [plan] = await plan_attachments([files[name]], SMALL, max_bytes=10**7, menu=[SMALL, claude()])
    outcome, text = PLANS[name]
    assert plan.outcome == outcome
    assert plan.text.startswith(text)
    assert plan.others == ((claude(),) if name == "scan.pdf" else ())


@pytest.mark.parametrize(("name", "text"), [("short.pdf", "2 pages, sent as PDF"), ("scan.pdf", "sent as PDF")])
async def test_model_that_reads_pdf_gets_the_file(files: dict[str, Path], name: str, text: str) -> None:
    [plan] = await plan_attachments([files[name]], claude(), max_bytes=10**7)
    assert plan.text == text
    parts = await message_parts(
        {"text": "What?", "files": [str(files[name])]}, spec=claude(), owner="ann", max_bytes=10**7
    )
    [message] = adapt([ModelRequest([UserPromptPart(parts)])], claude()).messages
    [question, file] = message.parts[0].content  # type: ignore[union-attr, misc]
    assert question == "What?"
    assert isinstance(file, BinaryContent)
    assert file.data == files[name].read_bytes()


async def test_model_chosen_later_gets_text_or_file(files: dict[str, Path]) -> None:
    value = {"text": "What?", "files": [str(files["short.pdf"]), str(files["letter.docx"])]}
    parts = await message_parts(value, spec=SMALL, owner="ann", max_bytes=10**7)
    messages: list[ModelMessage] = [ModelRequest([UserPromptPart(parts)])]

    def sent(spec: ModelSpec) -> list[str]:
        [message] = adapt(messages, spec).messages
        items: Any = message.parts[0].content  # type: ignore[union-attr]
        return [getattr(item, "media_type", "text") if isinstance(item, BinaryContent) else "text" for item in items]

    assert sent(SMALL) == ["text", "text", "text"]
    assert sent(claude()) == ["text", PDF, "text"]
    assert [item.media_type for item in parts if isinstance(item, BinaryContent)] == [PDF, DOCX]


@pytest.fixture
async def page(server: Running, tmp_path: Path) -> AsyncIterator[Conversations]:
    made = chats_of(server.base_url, tmp_path, SMALL)
    yield made
    await made.aclose()


async def test_edited_question_gets_other_passages(
    page: Conversations, server: Running, files: dict[str, Path]
) -> None:
    value = {"text": "!text A. What about chapter 30?", "files": [str(files["long.pdf"])]}
    live = await page.send(ANN, None, value, Choices())
    assert live is not None
    await settle(page)
    assert "[Page 30]" in last_content(server)
    assert "812 euros" not in last_content(server)
    shown = await view_of(page, "ann", live.conversation_id)
    assert "Text read from long.pdf: pages " in shown.texts[0]
    assert " of 41" in shown.texts[0]
    await page.edit(
        ANN, live.conversation_id, shown.turns[0]["id"], "!text B. What is the rent of the hall?", Choices()
    )
    await settle(page)
    assert "812 euros" in last_content(server)


async def test_refused_document_stores_nothing(page: Conversations, server: Running, files: dict[str, Path]) -> None:
    asked = len(server.journal())
    with pytest.raises(InputError, match=r"cut\.docx is damaged or cut off"):
        await page.send(ANN, None, {"text": "What?", "files": [str(files["cut.docx"])]}, Choices())
    assert len(server.journal()) == asked


async def test_metadata_names_the_pages(files: dict[str, Path]) -> None:
    value = {"text": "What is the rent of the hall?", "files": [str(files["long.pdf"])]}
    for spec, pages in ((replace(SMALL, context_tokens=131_072), ""), (SMALL, "7")):
        parts = await message_parts(value, spec=spec, owner="ann", max_bytes=10**7)
        read = extracted_text_of(parts[-1])
        assert read is not None
        assert (pages in read["pages"]) if pages else read["pages"] == ""
        assert (read["count"], read["unit"]) == ("41", "page")


async def test_files_of_which_nothing_must_be_known_have_one_line(tmp_path: Path) -> None:
    contents = {f"{number}.txt": b"words" for number in range(11)} | {"short.docx": LETTER}
    contents |= {"latin1.csv": "Größe;Straße".encode("cp1252"), "empty.md": b" ", "cut.docx": LETTER[:900]}
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    planned = await plan_attachments([tmp_path / name for name in contents], SMALL, max_bytes=10**7)
    lines = re.findall("<span>(.*?)</span>", render_attachments(planned))
    assert lines == [
        "12 files, sent as text",
        "latin1.csv: will be sent as text; read as windows-1252",
        "empty.md: will be sent as text, but it is empty",
        "cut.docx is damaged or cut off: it can&#x27;t be read as DOCX.",
    ]
    assert "0.txt: will be sent as text" in render_attachments(planned[:2])


async def test_page_that_an_answer_names_has_a_number(page: Conversations, files: dict[str, Path]) -> None:
    value = {"text": "!text The rent of the hall is 812 euros (p. 7).", "files": [str(files["long.pdf"])]}
    live = await page.send(ANN, None, value, Choices())
    assert live is not None
    await settle(page)
    view = await view_of(page, "ann", live.conversation_id)
    assert 'data-source="1" data-passage="1"' in view.texts[1]
    [source] = view.turns[0].get("sources", [])
    assert "The rent of the hall is 812 euros." in str(source["passages"])
    assert source["page"] == 7
    assert "The rent of the hall is 812 euros." in view.texts[2]
