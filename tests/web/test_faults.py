"""Faults of the disk in the running app: each refusal is a sentence without a path, and all works again afterwards."""

import errno
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from pydantic_ai.messages import ToolCallPart, ToolReturnPart

from agent.errors import HistoryError, reason_of, without_paths
from agent.history.json_files import name_of
from agent.local.manager import not_started
from agent.suspension.ledger import SqliteLedger
from agent.tools.function_tools import Tool, execute_all
from tests.conftest import CONFIG, App, becomes
from tests.support.foreign_requests import last_message
from tests.support.http_client import API, Answer, HttpVisitor
from tests.support.media_files import random_png
from tests.support.models import VISION_MODEL
from tests.support.scripted_server import Config, Running

SERVER = Config(models=(VISION_MODEL,), rate=500.0)
MOUNTED = """
mkdir -p "$SWITCHBOARD_DATA" "$GRADIO_TEMP_DIR" && mount -t tmpfs -o size=32m none "$SWITCHBOARD_DATA" &&
mkdir "$SWITCHBOARD_DATA/.tmp" && mount --bind "$SWITCHBOARD_DATA/.tmp" "$GRADIO_TEMP_DIR" && exec "$@"
"""
ON_SMALL_DISK = ("unshare", "--mount", "sh", "-c", MOUNTED, "sh")
FULL, NO_ROOM = "the disk is full", "There is no room for more files"


NEED_STORE = ("rename", "pin", "message", "edit", "retry", "link")
"""Routes that change what is stored, besides events of the page and deletions."""


class Owner:
    """A visitor with a chat that has a picture, and requests for each kind of operation on what is stored."""

    def __init__(self, app: App) -> None:
        self.program = HttpVisitor(app.url)
        self.program.say("!text pear", self.program.upload("p.png", random_png()))
        [row] = self.program.ask("GET", "/conversations").json["conversations"]
        self.chat, self.path = row["id"], f"/conversations/{row['id']}"
        self.exported = self.program.ask("GET", f"/export/{self.chat}").text
        link = self.program.ask("POST", f"{self.path}/links", json={"attachments": True}).json
        owner = self.program.ask("GET", "/own-data").json
        assert owner["files"] == 1
        self.link = link["path"]
        self.message = f"{self.path}/messages/{last_message(self.program, self.chat, 'pear')}"
        self.program.say("!text peach", new=True)
        [other] = [one["id"] for one in self.program.ask("GET", "/conversations?q=peach").json["hits"]]
        self.other = f"/conversations/{other}/messages/{last_message(self.program, other, 'peach')}"

    def send(self, chat: str = "", text: str = "!text plum") -> Answer:
        path = f"/conversations/{chat}/messages" if chat else "/conversations"
        return self.program.ask("POST", path, json={"text": text}, headers={"accept": "application/x-ndjson"})

    def await_end(self, begun: Answer) -> None:
        """Read the answer that a request has begun, if it has, up to its end."""
        for run in re.findall(r'"run": ?"(\w+)"', begun.text):
            assert self.program.ask("GET", f"/runs/{run}/events").status == 200

    def writes(self) -> dict[str, Callable[[], Answer]]:
        """Return the requests that store something, by name."""
        ask, files = self.program.ask, {"files": ("p.png", random_png())}
        return {
            "begin a chat": self.send,
            "go on": lambda: self.send(self.chat),
            "upload": lambda: ask("POST", f"{API}upload", files=files),
            "import": lambda: ask("POST", "/import", content=self.exported.replace("pear", "peas" * 99_999).encode()),
            "rename": lambda: ask("PATCH", self.path, json={"title": "plum"}),
            "pin": lambda: ask("PATCH", self.path, json={"pinned": True}),
            "message": lambda: ask("POST", f"{self.path}/messages", json={"text": "!text plum"}),
            "retry": lambda: ask("POST", f"{self.other}/retry", json={}),
            "edit": lambda: ask("PATCH", self.message, json={"text": "!text plum"}),
            "link": lambda: ask("POST", f"{self.path}/links", json={"attachments": True}),
        }

    def reads(self) -> dict[str, Callable[[], Answer]]:
        """Return the requests that read, by name."""
        ask, program = self.program.ask, self.program
        return {
            "list": lambda: ask("GET", "/conversations"),
            "search": lambda: ask("GET", "/conversations?q=pear"),
            "one": lambda: ask("GET", self.path),
            "show": lambda: ask("GET", f"{self.path}?format=blocks"),
            "page": lambda: ask("GET", f"/c/{self.chat}"),
            "shared page": lambda: ask("GET", self.link),
            **{
                f"export {form}": lambda form=form: ask("GET", f"/export/{self.chat}?format={form}")
                for form in ("json", "markdown", "html")
            },
            "export all": lambda: ask("GET", "/export"),
            "own data": lambda: ask("GET", "/own-data"),
            "copy": lambda: HttpVisitor(str(program.http.base_url)).ask("POST", f"{self.link}/continue"),
        }

    def deletions(self) -> dict[str, Callable[[], Answer]]:
        """Return the requests that delete, by name."""
        return {name: partial(self.program.ask, "DELETE", name) for name in (self.path, "/own-data")}


def ready(app: App) -> int:
    return HttpVisitor(app.url, None).ask("GET", "/readyz").status


def fill(path: Path) -> None:
    """Write to this file until its disk is full."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))


@pytest.mark.full
@pytest.mark.parametrize("store", ["sqlite", "json"])
def test_full_disk_refuses_in_sentences_and_works_again(
    start_app: Callable[..., App], server: Running, store: str
) -> None:
    if subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], check=False).returncode:
        pytest.skip("nothing may be mounted here")
    app = start_app(CONFIG, prefix=ON_SMALL_DISK, SWITCHBOARD_STORE=store, VLLM_BASE_URL=server.base_url)
    owner = Owner(app)
    assert app.process is not None
    data = Path(f"/proc/{app.process.pid}/root{app.folder}/data")
    fill(data / "filler")
    said = {name: work() for name, work in owner.writes().items()}
    assert {name: one.text for name, one in said.items() if FULL not in one.text and NO_ROOM not in one.text} == {}
    assert not any(str(app.folder) in answer.text for answer in said.values())
    becomes(503, lambda: ready(app))
    assert "pear" in owner.program.ask("GET", f"/export/{owner.chat}").text
    (data / "filler").unlink()
    becomes(200, lambda: ready(app))
    for name, work in owner.writes().items():
        answer = work()
        assert answer.status < 300, (name, answer.text)
        assert FULL not in answer.text, (name, answer.text)
        owner.await_end(answer)
    assert "plum" in owner.program.ask("GET", f"/export/{owner.chat}").text


def test_no_answer_has_the_path_of_a_damaged_folder(
    start_app: Callable[..., App], server: Running, tmp_path: Path
) -> None:
    place = tmp_path / "secret place"
    app = start_app(CONFIG, SWITCHBOARD_STORE=f"json:{place}", VLLM_BASE_URL=server.base_url)
    owner, said = Owner(app), list[str]()
    records = [path for path in place.rglob("*") if path.is_file() and name_of(owner.chat) in str(path)]
    assert records
    for damage in (None, app.folder / "data" / "media", app.folder / "tmp", place / "owners", place):
        if damage is None:
            for path in records:
                path.write_text("no record")
        else:
            shutil.rmtree(damage)
            damage.write_text("no folder")
        for name, work in {**owner.writes(), **owner.reads(), **(owner.deletions() if damage == place else {})}.items():
            answer = work()
            assert not any(path in answer.text for path in (str(tmp_path), str(app.folder / "data"))), (name, damage)
            assert "Internal Server Error" not in answer.text, (name, damage)
            assert answer.status != 500, (name, damage, answer.text)
            if damage == place and name in (*NEED_STORE, *owner.deletions()):
                assert (answer.status, "Not a directory" in answer.text) == (503, True), (name, answer)
            said.append(answer.text)
    assert any("cannot read or write its files: Not a directory" in text for text in said), said
    assert str(place) in app.log
    assert ready(app) == 503


PATHS = {
    "system": FileNotFoundError(errno.ENOENT, "No such file", "/srv/secret/history.db"),
    "text": OSError("cannot read '/srv/secret place/a.db' and /srv/secret/b"),
    "quoted": OSError('unable to open "/srv/secret"'),
    "driver": RuntimeError("connection to socket /srv/secret/.s.PGSQL failed."),
}


@pytest.mark.parametrize("error", PATHS.values(), ids=PATHS)
def test_reason_has_no_path(error: Exception) -> None:
    assert "/srv" not in reason_of(error)
    assert "secret/" not in reason_of(error)
    assert "/srv" not in not_started(error).text


CUT = {
    "cannot open /home/My Name/data/x.db": "cannot open x.db",
    "cannot open '/home/my name/a, b/x.db': locked": "cannot open x.db: locked",
    "bad file:///home/me/x and file:/srv/y": "bad x and y",
    "bad sqlite:////srv/chats/a.db": "bad a.db",
    "error:/srv/chats/a.db, /tmp/one and /var/two": "error:a.db, one and two",
    r"C:\Users\me\x.db is locked": "x.db is locked",
    r"'D:\\My files\\x.db' is locked": "x.db is locked",
    r"\\server\share\x.db is locked": "x.db is locked",
    "POST /v1/models failed": "POST /v1/models failed",
    "'/v1/models' or /conversations/12/messages is missing": "'/v1/models' or /conversations/12/messages is missing",
    "redis://host:6379/home/0 and http://[::1]/home/x": "redis://host:6379/home/0 and http://[::1]/home/x",
    "and/or, 3 / 4, ./home/me, a:b, C: \\n": "and/or, 3 / 4, ./home/me, a:b, C: \\n",
}


@pytest.mark.parametrize("said", CUT)
def test_only_absolute_paths_are_cut(said: str) -> None:
    assert without_paths(said) == CUT[said]


def test_own_folders_are_cut_whatever_their_names_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, home = tmp_path / "a (new), folder", tmp_path / "A. B: home"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(home))
    assert without_paths(f"{here}/data/x.db or {home}/y") == "x.db or y"


def test_reason_keeps_the_rest() -> None:
    text = "https://example.org/a/b answered 1/2 of text/html, see docs/http.md"
    assert reason_of(ValueError(text)) == text
    assert reason_of(OSError(errno.ENOSPC, "x", "/a")) == FULL
    assert reason_of(OSError()) == "OSError"


async def test_ledger_names_no_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(HistoryError, match="cannot be used") as raised:
        await SqliteLedger(tmp_path / "file" / "used").use("a", None)
    assert str(tmp_path) not in raised.value.text


async def test_result_of_a_tool_has_no_path() -> None:
    def look() -> str:
        return Path("/srv/secret/b.txt").read_text()

    results = list[ToolReturnPart]()
    await execute_all({"look": Tool(look, "look")}, [ToolCallPart("look", {})], timeout=5, on_result=results.append)
    assert "b.txt" in str(results[0].content)
    assert "/srv" not in str(results[0].content)
