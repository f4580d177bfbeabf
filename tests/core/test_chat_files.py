"""`Chat.files` and `Chat.search`: the files of one conversation, and keyword search in their texts."""

import gc
import json
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image as Pillow
from pydantic_ai.messages import BinaryContent, FilePart, ModelRequest, ModelResponse, UserPromptPart

from agent import Agent, Chat, Context, Endpoint, InputError, ModelSpec, connect, tool
from agent.chat_files import ChatIndex, files_in
from agent.files.kinds import PDF, Document
from agent.files.ranking import Passage
from agent.history import PROGRAM
from tests.conftest import ROOT
from tests.support.documents import pdf, scanned_pdf, word, workbook
from tests.support.known_texts import picture_of_text
from tests.support.scripted_server import Config, Running

SPEC = ModelSpec(id="vllm:small", name="small", label="Small", provider="vllm", context_tokens=32_768, image=True)
SERVER = Config(rate=0, models=("small",))
CONTRACT = pdf(["Parties", "The notice period is three months.", "Signatures"])


@tool
def draw() -> BinaryContent:
    """Draw a red square."""
    out = BytesIO()
    Pillow.new("RGB", (4, 4), "red").save(out, "PNG")
    return BinaryContent(out.getvalue(), media_type="image/png", identifier="square.png")


@pytest.fixture
def agent(server: Running) -> Agent:
    return Agent(connect(SPEC, Endpoint(server.base_url)), tools=[draw])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "contract.pdf").write_bytes(CONTRACT)
    (tmp_path / "notes.md").write_text("# Notes\n\nThe garden is shared.\n```\ncode\n```\n")
    (tmp_path / "会议.docx").write_bytes(
        word(("会议", "会议室的租金是八百一十二欧元。"), ("日本", "東京の家賃は高い。"))
    )
    (tmp_path / "costs.xlsx").write_bytes(workbook(Rent=[["May", 812]], Heating=[["Gas boiler", 95]]))
    (tmp_path / "scan.pdf").write_bytes(scanned_pdf(picture_of_text("Invoice")))
    return tmp_path


def ask(chat: Chat, folder: Path) -> None:
    names = ("contract.pdf", "notes.md", "会议.docx", "costs.xlsx")
    result = chat.say(["!tool draw {} !text Done.", *(folder / name for name in names)])
    assert result.finish_reason == "stop"


@pytest.mark.slow
def test_files_have_name_type_size_owner_and_origin(agent: Agent, folder: Path) -> None:
    with Chat(agent) as chat:
        assert chat.files == {}
        ask(chat, folder)
        files = chat.files
        assert list(files) == ["contract.pdf", "notes.md", "会议.docx", "costs.xlsx", "square.png"]
        shown = [(one.media_type, one.origin, one.tool, one.owner) for one in files.values()]
        assert shown[0] == ("application/pdf", "user", "", PROGRAM)
        assert shown[1][:2] == ("text/markdown", "user")
        assert shown[4] == ("image/png", "tool", "draw", PROGRAM)
        assert files["contract.pdf"].size == len(CONTRACT)
        assert files["notes.md"].data.decode() == (folder / "notes.md").read_text().rstrip("\n") + "\n"
        assert repr(CONTRACT[:9])[2:-1] not in repr(files["contract.pdf"])


def test_files_of_one_name_and_without_name_differ() -> None:
    def prompt(*items: BinaryContent) -> ModelRequest:
        return ModelRequest([UserPromptPart(list(items))])

    png = draw().data
    one = BinaryContent(CONTRACT, media_type="application/pdf", identifier="contract.pdf")
    other = BinaryContent(pdf(["Other"]), media_type="application/pdf", identifier="contract.pdf")
    made = ModelResponse([FilePart(BinaryContent(png, media_type="image/png"))])
    found = files_in([prompt(one, other), made, prompt(one, BinaryContent(png + b"x", media_type="image/png"))])
    assert {name: file.origin for name, file in found.items()} == {
        "contract.pdf": "user",
        "contract (2).pdf": "user",
        "image-1.png": "model",
        "image-2.png": "user",
    }


QUERIES = {
    "notice period": ("contract.pdf", "page", 2),
    "gardening": ("notes.md", "section", 1),
    "租金": ("会议.docx", "section", 1),
    "家賃": ("会议.docx", "section", 2),
    "boiler": ("costs.xlsx", "sheet", 2),
}


@pytest.mark.slow
def test_search_finds_passages_in_all_kinds_of_files(agent: Agent, folder: Path) -> None:
    with Chat(agent) as chat:
        ask(chat, folder)
        for query, place in QUERIES.items():
            best = chat.search(query).hits[0]
            assert (best.file, best.unit, best.page) == place
        assert chat.search("zeppelin").hits == ()
        assert len(chat.search("the rent notice garden May", limit=2).hits) == 2
        assert chat.search("rent").note == "Found by keywords alone: this program has no embeddings of the texts."
        for query, limit in ((" ", 3), ("rent", 0)):
            with pytest.raises(InputError):
                chat.search(query, limit=limit)


async def test_words_are_indexed_again_for_other_documents() -> None:
    index, first, second = ChatIndex(), Document(PDF, "", ("A boat.",)), Document(PDF, "", ("A mill.",))
    found = await index.of([first])
    assert await index.of([Document(PDF, "", ("A boat.",))]) is found
    for documents, question, places in (([first, second], "mill", [1]), ([second], "mill", [0]), ([], "mill", [])):
        passages, keywords = await index.of(documents)
        assert (len(passages), keywords.ranked(question)) == (len(documents), places)


@pytest.mark.slow
def test_cleared_chat_keeps_no_words(agent: Agent, tmp_path: Path) -> None:
    def passages() -> list[str]:
        gc.collect()
        return [one.text for one in gc.get_objects() if isinstance(one, Passage) and "xylograph" in one.text]

    (tmp_path / "notes.md").write_text("A xylograph hangs in the hall.")
    (tmp_path / "more.md").write_text("Two xylographs are in the cellar.")
    with Chat(agent) as chat:
        chat.say(["!text Done.", tmp_path / "notes.md"])
        assert len(chat.search("xylograph").hits) == len(passages()) == 1
        chat.say(["!text Done.", tmp_path / "more.md"])
        assert len(chat.search("xylograph").hits) == len(passages()) == 2
        chat.clear()
        assert passages() == []
        assert chat.search("xylograph").hits == ()


@pytest.mark.slow
def test_unreadable_document_is_named(agent: Agent, folder: Path) -> None:
    scan = BinaryContent((folder / "scan.pdf").read_bytes(), media_type="application/pdf", identifier="scan.pdf")
    context = Context(session_id="s", messages=(ModelRequest([UserPromptPart(["What?", scan])]),))
    with Chat(agent, context=context) as chat:
        found = chat.search("invoice")
    assert found.hits == ()
    assert found.unread == {"scan.pdf": "shows only pictures, such as scans, and has no text"}


OTHER_PROCESS = """
import json, sys
from agent import Agent, Chat
with Chat(Agent("small", provider="vllm", base_url="http://127.0.0.1:1/v1"), store=sys.argv[1], id="lease") as chat:
    hits = chat.search("notice period").hits
    print(json.dumps([[(one.name, one.size, one.origin) for one in chat.files.values()], [hit.text for hit in hits]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("json", marks=pytest.mark.full)])
def test_same_id_gives_the_same_in_another_process(agent: Agent, folder: Path, kind: str) -> None:
    address = f"sqlite:///{folder / 'chats.db'}" if kind == "sqlite" else f"json:{folder / 'chats'}"
    with Chat(agent, store=address, id="lease") as chat:
        ask(chat, folder)
        here = [
            [[one.name, one.size, one.origin] for one in chat.files.values()],
            [hit.text for hit in chat.search("notice period").hits],
        ]
    for name in ("contract.pdf", "notes.md"):
        (folder / name).unlink()
    command = [sys.executable, "-c", OTHER_PROCESS, address]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout) == here
    assert here[1]
    assert is_on_disk(folder)
    with Chat(agent, store=address, id="another") as chat:
        assert chat.files == {}
        assert chat.search("notice period").hits == ()
    with Chat(agent, store=address, id="lease") as chat:
        chat.clear()
        assert chat.files == {}
    with Chat(agent, store=address, id="lease") as chat:
        assert chat.files == {}
        assert chat.search("notice period").hits == ()
    assert not is_on_disk(folder)


def is_on_disk(folder: Path) -> bool:
    """Return True if a file here has the text of the notes, whose own file was removed."""
    return any(b"The garden is shared." in path.read_bytes() for path in folder.rglob("*") if path.is_file())
