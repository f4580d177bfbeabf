"""Export and import: the owner alone, in all formats, with limits, all or nothing, and nothing twice."""

import asyncio
import io
import json
import os
import re
import signal
import struct
import warnings
import zipfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, cast

import httpx
import pytest
from pydantic_ai.messages import BinaryContent, ImageUrl, ModelRequest, UserPromptPart
from starlette.types import Receive, Scope, Send

from agent.errors import HistoryError
from agent.files.references import files_named_in
from agent.files.store import ROUTE, MediaStore
from agent.history import ChatSummary, Conversation, Entry, HistoryStore, RunEvent, RunEvents, now
from agent.history.codec import dump_conversation, dump_entries
from agent.history.memory import MemoryStore
from agent.i18n.translator import ENGLISH
from agent.settings import LocalSettings, Settings
from agent.transfer.export import FORMATS
from agent.transfer.imported import bounded
from agent.transfer.portable import export_json
from agent.web.chat.expiry import FAR_FUTURE, IMPORT_TIME, ExpiredConversations, hidden
from agent.web.chat.importer import AT_ONCE, PAGE, Importer, ImportResult
from agent.web.chat.links import ChatCopies, ChatLinks, LinkChoices
from agent.web.chat.storage_quota import StorageQuota
from agent.web.chat.visitor import Visitor
from agent.web.transfer_routes import _ImportResponse as ImportResponse
from tests.conftest import App, becomes
from tests.support.asgi_requests import asked, longest_step
from tests.support.foreign_requests import stored_conversations
from tests.support.history_stores import KINDS, STORES, Clock, chain, prompt, started
from tests.support.http_client import Answer, HttpVisitor, marker, owner_in, send_raw
from tests.support.media_files import harmful_pictures, random_png
from tests.support.models import VISION_MODEL
from tests.support.scripted_server import Config, Running
from tests.support.transfers import texts_of, zipped
from tests.support.waiting import until

ANN = Visitor(owner="ann")
SETTINGS = Settings(local=LocalSettings(cache_dir=Path(os.devnull)))
SERVER = Config(models=(VISION_MODEL,), rate=2000.0)
CONFIG = "[server]\nmax_upload_bytes = 400000\n[uploads]\nmb_per_request = 1\n"


def mine(app: App, visitor: HttpVisitor) -> dict[str, int]:
    """Return the visitor's stored conversations and their numbers of entries."""
    owner = owner_in(visitor.cookie or "")
    return {id_: row[1] for id_, row in stored_conversations(app).items() if row[0] == owner}


def files_of(app: App, visitor: HttpVisitor) -> list[bytes]:
    folder = app.folder / "data" / "media" / owner_in(visitor.cookie or "")
    return sorted(path.read_bytes() for path in folder.glob("[!.]*"))


def imported(visitor: HttpVisitor, data: bytes | list[Any], **headers: str) -> list[dict[str, Any]]:
    """Import a file and return the lines of the answer."""
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    answer = visitor.ask("POST", "/import", content=body, headers=headers)
    assert answer.status == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def claude(*texts: str) -> list[dict[str, Any]]:
    return [
        {"name": text, "chat_messages": [{"uuid": "1", "sender": "human", "content": [{"type": "text", "text": text}]}]}
        for text in texts
    ]


def test_export_and_import_by_another_visitor(own: App) -> None:
    first, second = HttpVisitor(own.url), HttpVisitor(own.url)
    word, picture = marker(), random_png()
    first.say(f"!text {word}", first.upload("p.png", picture))
    first.say("again")
    [conversation] = mine(own, first)
    one = first.http.get(f"/export/{conversation}")
    assert one.headers["content-type"].startswith("application/json")
    assert one.headers["content-disposition"].startswith("attachment; filename*=UTF-8''")
    every = first.http.get("/export", params={"format": "json"})
    lines = imported(second, one.content) + imported(second, every.content)
    done = [line for line in lines if line["type"] == "done"]
    assert [line["message"] for line in done] == ["1 chat was imported.", "1 chat was there already."]
    assert {line["phase"] for line in lines if line["type"] == "progress"} == {"reading", "storing"}
    copies = mine(own, second)
    assert [*copies.values()] == [mine(own, first)[conversation]]
    assert conversation not in copies
    assert imported(first, one.content)[-1]["known"] == 1, "it is the chat itself"
    assert [*mine(own, first)] == [conversation]
    assert files_of(own, second) == files_of(own, first)
    again = second.http.get(f"/export/{next(iter(copies))}")
    assert word in again.text


def test_other_formats(own: App) -> None:
    visitor = HttpVisitor(own.url)
    word = marker()
    visitor.say(f"!text **{word}**")
    [conversation] = mine(own, visitor)
    markdown = visitor.http.get(f"/export/{conversation}?format=markdown")
    assert markdown.headers["content-type"].startswith("text/markdown")
    assert f"**{word}**" in markdown.text
    assert markdown.text.startswith("# ")
    page = visitor.http.get(f"/export/{conversation}?format=html", headers={"accept-language": "de"})
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["content-disposition"].startswith("attachment")
    assert f"<strong>{word}</strong>" in page.text
    assert '<html lang="de">' in page.text
    assert re.search(r'<p class="caption">\d{1,2}\. \w+ 20\d\d', page.text)
    visitor.say("Look", visitor.upload("p.png", random_png()))
    with zipfile.ZipFile(io.BytesIO(visitor.http.get(f"/export/{conversation}?format=markdown").content)) as archive:
        texts = [name for name in archive.namelist() if name.endswith(".md")]
        pictures = [name for name in archive.namelist() if name.startswith("files/")]
        assert len(texts) == len(pictures) == 1
        assert f"]({pictures[0]})" in archive.read(texts[0]).decode()
    imported(visitor, claude("Second"))
    with zipfile.ZipFile(io.BytesIO(visitor.http.get("/export?format=html").content)) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        assert len(names) == 3
        assert word in "".join(archive.read(name).decode() for name in names)
        assert archive.read("index.html").decode().count("<li>") == 2
    assert visitor.ask("GET", f"/export/{conversation}?format=pdf").status == 400


def test_nobody_else_exports(own: App) -> None:
    first = HttpVisitor(own.url)
    word = marker()
    first.say(f"!text {word}")
    [conversation] = mine(own, first)
    for other in (HttpVisitor(own.url), HttpVisitor(own.url, None)):
        for form in ("json", "markdown", "html"):
            real = other.ask("GET", f"/export/{conversation}?format={form}")
            made_up = other.ask("GET", f"/export/{'0' * 32}?format={form}")
            assert (real.status, real.text) == (made_up.status, made_up.text) == (404, "Not found.")
            assert word not in other.ask("GET", f"/export?format={form}").text
    for site in ("cross-site", "same-site"):  # a link on a page of another site
        assert first.ask("GET", f"/export/{conversation}", headers={"sec-fetch-site": site}).status == 404


def test_import_needs_own_page_and_cookie(own: App) -> None:
    visitor, body = HttpVisitor(own.url), json.dumps(claude("x")).encode()
    cookie = {"cookie": visitor.http.headers["cookie"]}
    for headers in ({"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
        assert send_raw(own, "POST", "/import", body, **cookie, **headers)[0] == 403
    guest = HttpVisitor(own.url, None).ask("POST", "/import", content=body)
    assert (guest.status, guest.json["detail"]) == (403, "Allow cookies for this page to import chats.")
    assert visitor.ask("GET", "/import").status == 404
    assert visitor.ask("PUT", "/import").status == 405
    assert visitor.ask("POST", "/export").status == 405
    assert mine(own, visitor) == {}


def test_progress_result_and_language(own: App) -> None:
    visitor = HttpVisitor(own.url)
    lost = [{"title": "Lost", "id": "1"}, {"uuid": "2", "chat_messages": []}]
    *progress, done = imported(visitor, [*claude("One", "Two"), *lost])
    assert progress[-1] == {"type": "progress", "phase": "storing", "done": 2, "total": 2}
    assert done["message"] == ("2 chats were imported. Left out: 1 damaged chat, 1 empty chat.")
    assert len(done["conversations"]) == 2
    assert set(done["conversations"]) == set(mine(own, visitor))
    german = imported(visitor, claude("Drei"), **{"accept-language": "de"})[-1]["message"]
    assert german not in ("", "1 chat was imported.")


BOMB = zipped({"conversations.json": b"[" + b" " * 6_000_000 + b"]"})
DEEP = b'[{"mapping":' + b'{"x":' * 5000 + b"1" + b"}" * 5001 + b"]"
HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "text": b"Hello",
    "a number": b"1",
    "truncated": json.dumps(claude("x", "y")).encode()[:-3],
    "other JSON": b'[{"a": 1}]',
    "deeply nested": DEEP,
    "many brackets": b"[" * 900_000,
    "many objects": b"[" + b"{}," * 300_000 + b"{}]",
    "NaN": b'[{"chat_messages": [NaN]}]',
    "a ZIP bomb": BOMB,
    "a ZIP of nothing": zipped({"x.txt": b"x"}),
    "half a ZIP": BOMB[: len(BOMB) // 2],
    "a ZIP with a wrong directory": BOMB[:-12] + b"\xff" * 12,
    "a newer version": b'[{"switchboard": 99}]',
    "too many entries": b'[{"switchboard":1},{"conversation":{},"entries":[' + b"[]," * 310_000 + b"[]]}]",
}


EXPORT = json.dumps(claude("x")).encode()


def zip_of(*names: str, data: bytes = EXPORT, how: int = zipfile.ZIP_DEFLATED, mode: int = 0) -> bytes:
    """Return a ZIP file with an entry of each name."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two entries of one name
        for name in names:
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = mode << 16, how
            archive.writestr(info, data)
    return out.getvalue()


def patched(data: bytes, mark: bytes, offset: int, value: bytes) -> bytes:
    """Return the ZIP file with other bytes in its last conversation that begins with this mark."""
    at = data.rfind(mark) + offset
    return data[:at] + value + data[at + len(value) :]


WHOLE = zip_of("conversations.json")
HOSTILE |= {
    "nested ZIP files": zip_of("conversations.json", data=zip_of("conversations.json", data=BOMB)),
    "a ZIP in bzip2": zip_of("conversations.json", data=b"[" + b" " * 6_000_000 + b"]", how=zipfile.ZIP_BZIP2),
    "a ZIP in LZMA": zip_of("conversations.json", data=b"[" + b" " * 6_000_000 + b"]", how=zipfile.ZIP_LZMA),
    "a size that lies, small": patched(WHOLE, b"PK\x01\x02", 24, struct.pack("<L", 1)),
    "encrypted": patched(patched(WHOLE, b"PK\x01\x02", 8, b"\x01\0"), b"PK\x03\x04", 6, b"\x01\0"),
    "an unknown method": patched(WHOLE, b"PK\x01\x02", 10, b"\x63\0"),
    "many names": zip_of(*(f"{number}" for number in range(5_000)), data=b""),
    "long names": zip_of(*("x" * 60_000 + str(number) for number in range(6)), data=b""),
    "overlapping entries": patched(zip_of("a.json", "conversations.json"), b"PK\x01\x02", 42, struct.pack("<L", 0)),
    "an endless string": b'["' + b"a" * 900_000,
    "a long number": b'[{"chat_messages": [' + b"1" * 900_000 + b"]}]",
    "equal keys": b'[{"title":"x",' + b'"a":1,' * 140_000 + b'"a":2}]',
    **{f"cut at {at}": WHOLE[:at] for at in (3, 4, 29, len(WHOLE) // 2, len(WHOLE) - 22, len(WHOLE) - 1)},
}
HARMLESS = {
    "a size that lies, huge": patched(WHOLE, b"PK\x01\x02", 20, struct.pack("<2L", 0xFFFFFFFE, 0xFFFFFFFE)),
    "ZIP64 without its fields": patched(WHOLE, b"PK\x01\x02", 20, struct.pack("<2L", 0xFFFFFFFF, 0xFFFFFFFF)),
    "bytes before it": b"PK\x03\x04" + b"x" * 100 + WHOLE,
    "bytes after it": WHOLE + b"\0" * 100,
    "a path upwards": zip_of("../../conversations.json"),
    "an absolute path": zip_of("/etc/conversations.json"),
    "a link": zip_of("conversations.json", mode=0o120777),
    "two of one name": zip_of("conversations.json", "conversations.json"),
}
"""Odd ZIP files of which only the content counts: nothing is written under a name of an entry."""


@pytest.mark.parametrize("data", HARMLESS.values(), ids=HARMLESS)
def test_odd_zip_file_is_read_or_refused_with_a_sentence(own: App, data: bytes) -> None:
    visitor = HttpVisitor(own.url)
    last = imported(visitor, data)[-1]
    assert last["message"].endswith(".")
    assert len(mine(own, visitor)) == (last["type"] == "done")


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_hostile_file_gets_a_sentence_and_stores_nothing(own: App, data: bytes) -> None:
    visitor = HttpVisitor(own.url)
    answer = visitor.ask("POST", "/import", content=data)
    last = answer.json if answer.status != 200 else json.loads(answer.text.splitlines()[-1])
    sentence = last.get("message") or last["detail"]
    assert last.get("type") != "done"
    assert sentence.endswith(".")
    assert "Traceback" not in answer.text
    assert mine(own, visitor) == {}
    assert files_of(own, visitor) == []


def test_file_over_the_limit_is_refused_before_it_is_read(own: App) -> None:
    visitor = HttpVisitor(own.url)
    answer = visitor.ask("POST", "/import", content=b"[" + b" " * 1_000_001)
    assert (answer.status, answer.json["detail"]) == (413, "At most 1 MB can be imported at once.")
    assert imported(visitor, claude("After"))[-1]["type"] == "done"  # nothing is still counted


def test_pictures_that_harm_decoders_are_left_out(own: App) -> None:
    visitor = HttpVisitor(own.url)
    bad = next(data for data in harmful_pictures().values() if data[:4] == b"\x89PNG" and len(data) < 400_000)
    parts = [{"content_type": "image_asset_pointer", "asset_pointer": f"sediment://file_{name}"} for name in "ab"]
    node = {"author": {"role": "user"}, "content": {"content_type": "multimodal_text", "parts": ["Look", *parts]}}
    export = [{"title": "T", "mapping": {"n": {"parent": None, "message": node}}, "current_node": "n"}]
    good = random_png()
    names = {"file_a-1.png": bad, "file_b-2.png": good}
    lines = imported(visitor, zipped({"conversations.json": json.dumps(export).encode(), **names}))
    assert lines[-1]["left_out"] == ["1 attachment that is too large or of another type than pictures, sound and text"]
    assert files_of(own, visitor) == [good]


def test_script_in_text_stays_text(own: App) -> None:
    visitor = HttpVisitor(own.url)
    text = "<script>fetch('https://evil.example')</script><img src=x onerror=alert(1)>"
    [id_] = imported(visitor, claude(text))[-1]["conversations"]
    page = visitor.http.get(f"/export/{id_}?format=html").text
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page


def ours(*content: Any, **note: Any) -> list[dict[str, Any]]:
    """Return an export of ours with one message."""
    message = {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": [*content]}]}
    entries = [{"id": "b", "parent_id": None, "message": message, "note": note}]
    return [{"switchboard": 1}, {"conversation": {"id": "c", "head_id": "b"}, "entries": entries}]


def test_imported_title_that_nobody_sees_is_left_out(own: App) -> None:
    visitor, export = HttpVisitor(own.url), ours("Look")
    export[1]["conversation"]["title"] = "\u200b\u2060"
    assert imported(visitor, export)[-1]["type"] == "done"
    [row] = visitor.ask("GET", "/conversations").json["conversations"]
    assert row["title"] == ""


@pytest.mark.parametrize(
    "metadata", [{"read": "x"}, {"read": 1, "name": [], "kind": {}}, {"read": "x", "name": "a", "kind": "document"}]
)
def test_odd_metadata_of_an_import_break_no_route(own: App, metadata: dict[str, Any]) -> None:
    visitor = HttpVisitor(own.url)
    odd = {"kind": "text-content", "content": "x", "metadata": metadata}
    assert imported(visitor, ours("Look", odd, ended="stop", cost=-5.0))[-1]["type"] == "done"
    [row] = visitor.ask("GET", "/conversations").json["conversations"]
    for path in (f"/conversations/{row['id']}?format=blocks", *(f"/export?format={one}" for one in FORMATS)):
        assert visitor.ask("GET", path).status == 200


def test_second_chat_with_a_title_has_a_number(own: App) -> None:
    visitor = HttpVisitor(own.url)
    for number in "12":
        export = claude("Rome")
        export[0]["uuid"] = number
        imported(visitor, export)
    listed = [row["title"] for row in visitor.ask("GET", "/conversations").json["conversations"]]
    assert listed == ["Rome (2)", "Rome"]


async def test_broken_connection_stores_nothing(own: App) -> None:
    """Nobody has read the result, so the visitor would import the file once more."""
    visitor, other, seen = HttpVisitor(own.url), Answer(0, httpx.Headers(), ""), 0
    body = json.dumps(claude(*map(str, range(3000)))).encode()
    with visitor.http.stream("POST", "/import", content=body) as answer:
        for line in answer.iter_lines():
            if json.loads(line)["phase"] == "storing":
                seen = len(mine(own, visitor))
                other = HttpVisitor(own.url, visitor.cookie).ask("POST", "/import", content=b"[]")
                break
    assert 0 < seen < 3000
    assert (other.status, other.json["detail"]) == (
        409,
        "Another import of yours is running. Try again when it has ended.",
    )
    await until(lambda: not mine(own, visitor))
    body = json.dumps(claude("After")).encode()
    await until(lambda: visitor.ask("POST", "/import", content=body).status == 200)  # the place is free again


MESSAGES = 8 * PAGE


@pytest.mark.parametrize("is_long", [False, True], ids=["between two chats", "in a long chat"])
def test_killed_import_leaves_nothing(start_app: Callable[..., App], *, is_long: bool) -> None:
    """The process is killed (SIGKILL), also between two pages of one chat, and a new one finds its history."""
    app = start_app(CONFIG)
    long = [{"uuid": f"{n}", "sender": "human", "text": "pear"} for n in range(MESSAGES)]
    chats = [{"name": "long", "chat_messages": long}] if is_long else claude(*map(str, range(600)))
    visitor, body = HttpVisitor(app.url), json.dumps(chats).encode()

    def shown() -> list[Any]:
        hits = visitor.ask("GET", "/conversations?q=pear").json["hits"]
        return [*visitor.ask("GET", "/conversations").json["conversations"], *hits]

    with suppress(httpx.TransportError), visitor.http.stream("POST", "/import", content=body) as answer:
        for line in answer.iter_lines():
            if is_long:
                becomes(True, lambda: bool(mine(app, visitor)))
            elif not (json.loads(line).get("done") and json.loads(line)["phase"] == "storing"):
                continue
            assert shown() == [], "hidden until all are stored"
            app.stop(signal.SIGKILL)
    stored = mine(app, visitor)
    assert 0 < sum(stored.values()) < (MESSAGES if is_long else 600), "the import was killed while it stored"
    app.start()
    assert shown() == []
    becomes({}, lambda: mine(app, visitor))
    done = imported(visitor, body)[-1]
    count = "1 chat was" if is_long else "600 chats were"
    assert (done["message"], len(mine(app, visitor))) == (f"{count} imported.", len(chats))


def test_deletion_of_everything_ends_an_import(own: App) -> None:
    """What the deletion reads back stays true: the import stores nothing after it."""
    visitor, deleted, lines = HttpVisitor(own.url), Answer(0, httpx.Headers(), ""), list[dict[str, Any]]()
    body = json.dumps(claude(*map(str, range(3000)))).encode()
    with visitor.http.stream("POST", "/import", content=body) as answer:
        for line in answer.iter_lines():
            lines.append(json.loads(line))
            if lines[-1].get("phase") == "storing" and not deleted.status:
                deleted = HttpVisitor(own.url, visitor.cookie).ask("DELETE", "/own-data")
    assert deleted.status == 200
    assert not any(deleted.json.values())
    assert lines[-1] == {
        "type": "error",
        "message": "Everything of yours was deleted meanwhile, so nothing was imported.",
    }
    assert mine(own, visitor) == {}
    assert imported(visitor, claude("After"))[-1]["type"] == "done"


def test_import_without_room_stores_nothing(start_app: Callable[..., App], server: Running) -> None:
    app = start_app("[public]\non = true\nstored_mb_per_visitor = 1\n", VLLM_BASE_URL=server.base_url)
    visitor = HttpVisitor(app.url)
    assert imported(visitor, claude("a" * 400_000))[-1]["type"] == "done"
    refused = imported(visitor, claude("b", "c" * 900_000))[-1]
    assert refused["type"] == "error"
    assert refused["message"].startswith("There is no room here for the 0.9 MB of this import")
    assert len(mine(app, visitor)) == 1


# In process, with each store


@dataclass
class House:
    """A store with an importer."""

    store: HistoryStore
    media: MediaStore
    importer: Importer
    folder: Path
    busy: set[str] = field(default_factory=set[str])

    async def bring(self, data: bytes | list[Any]) -> ImportResult:
        """Import a file and return the result."""
        with TemporaryFile() as file:
            file.write(data if isinstance(data, bytes) else json.dumps(data).encode())
            file.flush()
            *_, last = [event async for event in self.importer.run(ANN, file, self.folder)]
        assert isinstance(last, ImportResult)
        return last

    async def chats(self) -> list[Conversation]:
        return await self.store.list(ANN.owner)

    async def texts(self, conversation: Conversation) -> list[str]:
        return texts_of(await self.store.history(await self.store.get(conversation.id, owner=ANN.owner)))


@pytest.fixture(params=KINDS)
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    store, media, busy = await STORES[request.param](tmp_path, Clock()), MediaStore(tmp_path / "media"), set[str]()
    quota = StorageQuota(None, store, media, tmp_path)
    importer = Importer(SETTINGS, store, media, quota, busy.__contains__, lambda _: None)
    yield House(store, media, importer, tmp_path, busy)
    await store.aclose()


def chat(id_: str, *texts: str, at: str = "2024-03-05", **more: Any) -> dict[str, Any]:
    """Return a chat of Claude's export, with a message each minute of this day."""
    times = [f"{at}T10:{minute:02}:00Z" for minute in range(len(texts))]
    messages = [
        {"uuid": f"{id_}-{number}", "sender": "human", "text": text, "created_at": time}
        for number, (text, time) in enumerate(zip(texts, times, strict=True))
    ]
    return {
        "uuid": id_,
        "name": id_,
        "chat_messages": messages,
        "created_at": times[0],
        "updated_at": times[-1],
        **more,
    }


async def test_imported_chats_keep_their_dates_and_places(house: House) -> None:
    own, _ = await started(house.store, "today", owner=ANN.owner)
    result = await house.bring([chat("b", "1", at="2024-03-05"), chat("c", "2", "3", at="2023-01-01")])
    await house.bring([chat("a", "4", at="2025-06-07")])
    chats = await house.chats()
    assert [*result.conversations] == [chats[3].id, chats[2].id], "the newest is the last"
    assert [one.title for one in chats] == [own.title, "a", "b", "c"]
    assert [str(one.updated_at.date()) for one in chats[1:]] == ["2025-06-07", "2024-03-05", "2023-01-01"]
    times = [entry.note.at for entry in await house.store.history(chats[-1])]
    assert [f"{time:%Y-%m-%d %H:%M}" for time in times] == ["2023-01-01 10:00", "2023-01-01 10:01"]


@pytest.mark.parametrize("fails", [False, True])
async def test_long_chat_is_imported_page_by_page(
    house: House, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """It is hidden until it is whole, and keeps its date and place."""
    monkeypatch.setattr("agent.web.chat.importer.PAGE", 2)
    save, pages = house.store.save, list[int]()

    async def watched(conversation: Conversation, entries: Sequence[Entry] = (), events: None = None) -> Conversation:
        pages.append(len(entries))
        assert await house.chats() == [], "a part is shown"
        if fails and len(pages) == 4:
            raise HistoryError("full")
        saved = await save(conversation, entries, events)
        assert await house.chats() == [], "a part is shown"
        return saved

    monkeypatch.setattr(house.store, "save", watched)
    importing = house.bring([chat("b", "1"), chat("a", *map(str, range(5)), at="2023-01-01")])
    if fails:
        with pytest.raises(HistoryError, match="full"):
            await importing
        assert [*await house.store.retention.sizes()] == []
    else:
        assert len((await importing).conversations) == 2
        newest, oldest = await house.chats()
        assert await house.texts(oldest) == [*map(str, range(5))]
        assert [str(one.updated_at.date()) for one in (newest, oldest)] == ["2024-03-05", "2023-01-01"]
    assert pages == [2, 2, 1, 1]


async def test_record_of_an_import_is_short(house: House) -> None:
    """A list reads hundreds of them. The messages of all branches stay."""
    entries = chain(*(prompt(f"{number}") for number in range(3)))
    long = Conversation(
        owner="x",
        title="pear " * 20_000,
        head_id=entries[-1].id,
        branches=tuple(entries[at % 2].id for at in range(60_000)),
        pending=("call",) * 20_000,
        source="x" * 100_000,
        summary=ChatSummary(message=entries[0].id, text="word " * 20_000, model="m" * 100_000),
    )
    fields = json.loads(dump_conversation(long))
    chats = [{"conversation": fields, "entries": [json.loads(text) for text in dump_entries(entries)]}]
    result = await house.bring([{"switchboard": 1}, *chats])
    [conversation] = await house.store.list(ANN.owner)
    assert len(dump_conversation(conversation)) < 50_000
    assert result.conversations == [conversation.id]
    assert len(await house.store.entries(conversation)) == 3
    short = Conversation(owner="x", title="Pear", branches=("1",), pending=("2",), source="ours:3")
    assert bounded(short) == short


async def test_versions_of_a_chat_are_imported_oldest_first(house: House) -> None:
    """Each adds its messages to the one before, wherever it is in the file. None is taken for a chat that was here."""
    result = await house.bring([chat("a", "1", "2", at="2025-06-07"), chat("a", "1", at="2023-01-01")])
    assert await house.texts(*await house.chats()) == ["1", "2"]
    assert result.known == 0


@pytest.mark.parametrize("is_shown", [False, True], ids=["while it stores", "while it shows"])
async def test_killed_import_is_ended(house: House, is_shown: bool) -> None:
    """It leaves nothing, unless its end was reached: then it leaves everything."""
    began, kept = now(), Entry(parent_id=None, message=prompt("kept"))
    await house.store.save(Conversation(owner=ANN.owner, head_id=kept.id, title="kept"), [kept])
    await house.bring([chat("b", "2")])
    conversations = [hidden(Conversation(owner=ANN.owner, title=str(number)), began) for number in range(3)]
    conversations = [await house.store.save(conversation) for conversation in conversations]
    assert [one.title for one in await house.chats()] == ["kept", "b"]
    if is_shown:
        await house.store.retention.set_expiry(conversations[1], None)
    running, dead = (
        ExpiredConversations(house.store, house.media, lambda _: False, lambda _, is_=is_: is_) for is_ in (True, False)
    )
    assert await running.delete() == 0
    later = now() + 3 * IMPORT_TIME
    while await dead.delete(at=later):
        pass
    assert sorted(one.title for one in await house.chats()) == [*("012" if is_shown else ""), "b", "kept"]
    assert await house.store.retention.expiring(later) == []


async def test_import_of_another_process_is_not_ended(house: House) -> None:
    """The other process, which has just started, sees hidden conversations that none of its own imports stores."""
    other = ExpiredConversations(house.store, house.media, lambda _: False, is_only=lambda: False)
    kept = 0
    with TemporaryFile() as file:
        file.write(json.dumps([chat(str(number), "1") for number in range(20)]).encode())
        file.flush()
        async for event in house.importer.run(ANN, file, house.folder):
            if getattr(event, "phase", "") == "storing":
                kept = max(kept, len(await house.store.retention.expiring(now())))
                assert await other.delete() == 0
    assert kept
    assert len(await house.chats()) == 20


async def test_import_shows_its_chats_in_the_end(house: House) -> None:
    """A file can have two versions of one new chat."""
    with TemporaryFile() as file:
        file.write(json.dumps([chat("a", "1"), chat("b", "2"), chat("a", "1", "more", at="2024-04-01")]).encode())
        file.flush()
        seen = list[tuple[Any, list[str]]]()
        async for event in house.importer.run(ANN, file, house.folder):
            seen.append((event, [one.title for one in await house.chats()]))
    assert next(titles for event, titles in seen if getattr(event, "phase", "") == "reading") == []
    assert {*seen[-1][1]} == {"a", "b"}
    assert isinstance(seen[-1][0], ImportResult)
    assert await house.texts(next(one for one in await house.chats() if one.title == "a")) == ["1", "more"]


async def test_chats_imported_again_are_recognised(house: House) -> None:
    export = [chat("a", "1", "2"), {**chat("", "no id"), "uuid": None}]
    first = await house.bring(export)
    assert len(first.conversations) == 2
    again = await house.bring([*export, *export])
    assert (again.conversations, again.updated, again.known) == ([], [], 4)
    assert str(again.text) == "4 chats were there already."
    chats = await house.chats()
    ours = b"".join([piece async for piece in export_json(house.store, house.media, chats)])
    assert (await house.bring(ours)).known == 2, "our own export of imported chats"
    await house.store.delete(chats[0].id, owner=ANN.owner)
    assert len((await house.bring(ours)).conversations) == 1, "a deleted chat comes back"
    assert len(await house.chats()) == 2


async def test_own_export_is_recognised_and_brings_new_messages_back(house: House) -> None:
    """A chat goes to another server, goes on there, and comes back."""
    conversation, _ = await started(house.store, "1", owner=ANN.owner)
    ours = b"".join([piece async for piece in export_json(house.store, house.media, [conversation])])
    assert (await house.bring(ours)).known == 1
    value = json.loads(ours)
    last = value[1]["entries"][-1]
    value[1]["entries"].append({**last, "id": "x", "parent_id": last["id"]})
    value[1]["conversation"]["head_id"] = "x"
    result = await house.bring(value)
    assert ([*result.updated], result.known) == ([conversation.id], 0)
    assert await house.texts(conversation) == ["1", "1"]
    assert (await house.bring(value)).known == 1
    assert len(await house.chats()) == 1


async def test_grown_chat_gets_its_new_messages(house: House) -> None:
    await house.bring([chat("a", "1"), chat("b", "2")])
    a = next(one for one in await house.chats() if one.title == "a")
    await house.store.label(a.id, owner=ANN.owner, title="Mine", pinned=True)
    grown = [chat("a", "1", "new", at="2024-04-01"), chat("b", "2")]
    result = await house.bring(grown)
    assert ([*result.conversations], [*result.updated], result.known) == ([], [a.id], 1)
    assert str(result.text) == "1 chat got new messages. 1 chat was there already."
    found = await house.store.get(a.id, owner=ANN.owner)
    assert (found.title, found.pinned, found.updated_at.month) == ("Mine", True, 4)
    assert await house.texts(a) == ["1", "new"]


@pytest.mark.slow
async def test_many_new_messages_of_a_known_chat_hold_no_loop(tmp_path: Path) -> None:
    store, media = await STORES["sqlite"](tmp_path, Clock()), MediaStore(tmp_path / "media")
    importer = Importer(
        SETTINGS, store, media, StorageQuota(None, store, media, tmp_path), set[str]().__contains__, lambda _: None
    )
    house, steps = House(store, media, importer, tmp_path), list[float]()
    for id_ in ("a", "b", "c"):  # a busy machine can be slow
        await house.bring([chat(id_, "1")])
        grown = chat(id_, "1")
        grown["chat_messages"] += [{"uuid": f"{id_}{n}", "sender": "human", "text": "new"} for n in range(6_000)]
        with longest_step() as longest:
            assert len((await asyncio.create_task(house.bring([grown]))).updated) == 1
        steps.append(longest[0][0])
    await store.aclose()
    assert min(steps) < 0.05, steps


async def test_chat_that_went_on_here_keeps_its_branch(house: House) -> None:
    await house.bring([chat("a", "1")])
    [conversation] = await house.chats()
    mine = chain(prompt("here"), after=conversation.head_id)
    await house.store.save(replace(conversation, head_id=mine[-1].id), mine)
    assert [*(await house.bring([chat("a", "1", "there")])).updated] == [conversation.id]
    [found] = await house.chats()
    assert await house.texts(found) == ["1", "here"]
    assert len(found.branches) == 1
    assert texts_of(await house.store.history(replace(found, head_id=found.branches[0]))) == ["1", "there"]


@pytest.mark.parametrize("is_here", [True, False])
async def test_chat_being_answered_gets_nothing(house: House, *, is_here: bool) -> None:
    """New messages would end an answer that another process writes."""
    await house.bring([chat("a", "1")])
    [conversation] = await house.chats()
    if is_here:
        house.busy.add(conversation.id)
    else:
        begun = [RunEvent.of(1, {"type": "begun"})]
        await house.store.runs.append(
            RunEvents(run_id="run", conversation_id=conversation.id, owner=ANN.owner, events=begun)
        )
    result = await house.bring([chat("a", "1", "new"), chat("b", "2")])
    assert len(result.conversations) == 1
    assert "the new messages of 1 chat in which an answer is being written" in str(result.text)
    assert await house.texts(conversation) == ["1"]


async def test_refused_new_messages_take_no_file_from_the_old(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The visitor goes on with an imported chat during an import that would add messages with the same picture."""
    id_ = await house.media.add(ANN.owner, BinaryContent(random_png(), media_type="image/png"), "elsewhere/")
    picture = chain(ModelRequest([UserPromptPart([ImageUrl(f"{ROUTE}{id_}")])]))
    first = await house.store.save(Conversation(owner=ANN.owner, head_id=picture[-1].id), picture)
    ours = b"".join([piece async for piece in export_json(house.store, house.media, [first])])
    await house.store.delete(first.id, owner=ANN.owner)
    await house.media.remove_references(ANN.owner, {id_: ["elsewhere/"]})
    [brought] = (await house.bring(ours)).conversations
    value, save = json.loads(ours), house.store.save
    last = value[1]["entries"][-1]
    value[1]["entries"].append({**last, "id": "x", "parent_id": last["id"]})
    value[1]["conversation"]["head_id"] = "x"

    async def late(conversation: Conversation, entries: Sequence[Entry] = (), events: None = None) -> Conversation:
        await save(await house.store.get(brought, owner=ANN.owner))
        return await save(conversation, entries, events)

    monkeypatch.setattr(house.store, "save", late)
    assert (await house.bring(value)).updated == []
    assert [*await house.media.files(ANN.owner)] == [id_]


async def test_import_that_takes_too_long_says_so(house: House) -> None:
    quota = StorageQuota(None, house.store, house.media, house.folder)
    house.importer = Importer(
        SETTINGS, house.store, house.media, quota, lambda _: False, lambda _: None, longest=timedelta(0)
    )
    with pytest.raises(HistoryError, match="could not be stored within an hour, so no new chat was imported"):
        await house.bring([chat("a", "1")])
    assert await house.chats() == []


@dataclass
class Cut:
    """A store whose save number `at` never returns. It tells if it was reached, and checks what is in the list."""

    store: HistoryStore
    at: int
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    saves: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def save(self, conversation: Conversation, entries: Sequence[Entry] = ()) -> Conversation:
        """Save, then hang."""
        saved = await self.store.save(conversation, entries)
        assert await self.store.list(conversation.owner) == []
        self.saves += 1
        if self.saves == self.at:
            self.reached.set()
            await asyncio.sleep(0.01)
        return saved


@pytest.mark.slow
async def test_copy_of_a_link_is_whole_or_nothing(house: House) -> None:
    """A long chat is copied in pages. One that is cut off leaves neither messages nor files, and no page is seen."""
    file = await house.media.add("bob", BinaryContent(random_png(), media_type="image/png"), "c/")
    texts = [f"{number} " + "x" * 8000 for number in range(7)]
    pictures = [ModelRequest([UserPromptPart(["Look", ImageUrl(ROUTE + file)])]) for _ in range(2)]
    entries = chain(pictures[0], *map(prompt, texts), pictures[1])
    conversation = await house.store.save(Conversation(owner="bob", head_id=entries[-1].id, title="Ships"), entries)
    links = ChatLinks(house.store, SETTINGS)
    token, _link = await links.create("bob", conversation.id, LinkChoices(days=None, with_files=True))

    async def copied(at: int) -> tuple[Cut, asyncio.Task[str]]:
        store = Cut(house.store, at)
        quota = StorageQuota(None, house.store, house.media, house.folder)
        importer = Importer(SETTINGS, cast(Any, store), house.media, quota, lambda _: False, print)
        copies = ChatCopies(house.media, importer, page_bytes=30_000)
        making = asyncio.create_task(copies.make(await links.open(token), ANN, ENGLISH))
        return store, making

    for at in (1, 2, 3):
        store, making = await copied(at)
        await store.reached.wait()
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        assert await house.store.retention.expiring(FAR_FUTURE, owners=ANN.owner) == []
        assert [*await house.media.files(ANN.owner)] == []
    store, making = await copied(0)
    copy = await house.store.get(await making, owner=ANN.owner)
    assert (store.saves, copy.title) == (3, "Ships")
    assert len(await house.media.files(ANN.owner)) == 1
    found = await house.store.history(copy)
    assert texts_of(found)[1:-1] == texts
    assert files_named_in([found[0].message]) == files_named_in([found[-1].message]) != {file}


async def test_import_without_a_reader_frees_its_place(tmp_path: Path) -> None:
    """Whoever takes no progress keeps no others waiting, and what nobody was told is not stored."""
    store, media = MemoryStore(), MediaStore(tmp_path / "media")
    importer = Importer(SETTINGS, store, media, StorageQuota(None, store, media, tmp_path), lambda _: False, print)
    slow = list[Any]()
    with ExitStack() as stack:
        for number in range(AT_ONCE + 1):
            file = stack.enter_context(TemporaryFile())
            file.write(json.dumps([chat(str(number), "1")]).encode())
            file.flush()
            slow.append(importer.run(Visitor(owner=f"owner-{number}"), file, tmp_path))
            assert await anext(slow[-1])
        for number, events in enumerate(slow):
            await events.aclose()
            assert await store.list(f"owner-{number}") == []


async def test_memory_is_not_freed_while_chats_are_imported(tmp_path: Path) -> None:
    store, media = MemoryStore(), MediaStore(tmp_path / "media")
    importer = Importer(SETTINGS, store, media, StorageQuota(None, store, media, tmp_path), lambda _: False, print)
    async with importer.place(ANN):
        assert importer.is_running
    assert not importer.is_running


async def test_imports_of_one_address_leave_a_place_for_another(tmp_path: Path) -> None:
    begun, may_go_on = list[str](), asyncio.Event()

    class SlowStore(MemoryStore):
        async def list(self, owner: str, *arguments: Any, **named: Any) -> Any:
            begun.append(owner)
            if owner != "bob":
                await may_go_on.wait()
            return await super().list(owner, *arguments, **named)

    store, media = SlowStore(), MediaStore(tmp_path / "media")
    importer = Importer(SETTINGS, store, media, StorageQuota(None, store, media, tmp_path), lambda _: False, print)

    async def imported(owner: str, address: str) -> Any:
        with TemporaryFile() as file:
            file.write(json.dumps([chat(owner, "1")]).encode())
            file.flush()
            return [one async for one in importer.run(Visitor(owner=owner, address=address), file, tmp_path)][-1]

    many = [asyncio.create_task(imported(f"ann-{number}", "192.0.2.1")) for number in range(AT_ONCE + 1)]
    await until(lambda: bool(begun))
    other = asyncio.create_task(imported("bob", "192.0.2.2"))
    await until(other.done)
    assert len(other.result().conversations) == 1
    may_go_on.set()
    assert [len(one.conversations) for one in await asyncio.gather(*many)] == [1] * (AT_ONCE + 1)


async def test_progress_of_an_import_is_kept_by_no_cache() -> None:
    async def lines() -> AsyncGenerator[str]:
        yield "{}\n"

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await ImportResponse(AsyncExitStack(), lines())(scope, receive, send)

    answer = await asked(app, "POST", "/import", waits=True)
    assert (answer.text, dict(answer.headers)[b"cache-control"]) == ("{}\n", b"no-store")
