"""Uploads: limited while they arrive, counted for each visitor and for all, and removed in time.

The attacks use raw HTTP on the real app, and another visitor is served meanwhile.
"""

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPResponse
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import pytest

from agent.errors import Limited
from agent.settings import UploadSettings
from agent.web import unsent_files as table
from agent.web.chat.attachments import MAX_FILES
from agent.web.middleware.uploads import LINGER_SECONDS, UploadForm
from agent.web.unsent_files import (
    LOCK,
    MB,
    MIN_FILE_BYTES,
    PREFIX,
    UnsentFiles,
    given_name,
    remove_leftovers,
    safe_name,
    stored_name,
)
from tests.conftest import App, becomes
from tests.support.clocks import Clock
from tests.support.http_client import API, HttpVisitor, connected
from tests.support.live_folders import files_in
from tests.support.media_files import HALF_MB, random_png
from tests.support.memory import held_memory
from tests.support.models import VISION_MODEL
from tests.support.scripted_server import Config

SERVER = Config(models=(VISION_MODEL,), rate=500.0)
CONFIG = """
[server]
max_upload_bytes = 700000
[uploads]
files_per_request = 3
mb_per_request = 1
mb_per_visitor = 2
mb_of_guests = 1.5
"""
GIGABYTE = 1_100_000_000
HALF = b"x" * 500_000
FORM = {"content-type": "multipart/form-data; boundary=b"}
HEAD = b'--b\r\nContent-Disposition: form-data; name="files"; filename="%b"\r\n\r\n'


def on_disk(app: App) -> list[str]:
    """Return the names of all unsent files."""
    return sorted(path.name for path in files_in(app.folder / "tmp") if path.name != LOCK)


@pytest.fixture
def empty(own: App) -> App:
    """The app, without unsent files."""
    assert on_disk(own) == []
    return own


def sent(program: HttpVisitor, *sizes: int, **headers: str) -> tuple[int, str]:
    """Upload files of these sizes. Return the status and the answer."""
    files = [("files", (f"{number}.txt", b"x" * size)) for number, size in enumerate(sizes)]
    said = program.ask("POST", f"{API}upload", files=files, headers=headers)
    return said.status, said.text


def cleared(app: App, program: HttpVisitor, said: tuple[int, str], left: Sequence[str] = ()) -> None:
    """Send the uploaded files, and assert that only `left` remains."""
    assert said[0] == 200
    program.say("!tokens 3", *json.loads(said[1]))
    becomes([*left], lambda: on_disk(app))


@contextmanager
def sending(app: App, head: str, *pieces: bytes) -> Generator[socket.socket]:
    """Send the given part of an upload, without an HTTP library."""
    begun = f"POST {API}upload HTTP/1.1\r\nhost: 127.0.0.1\r\n{head}\r\n\r\n"
    with connected(app, begun.encode(), *pieces) as connection:
        yield connection


# One request


def test_gigabyte_is_refused_by_its_length(empty: App) -> None:
    kind = FORM["content-type"]
    with sending(empty, f"content-type: {kind}\r\ncontent-length: {GIGABYTE}") as raw:
        answer = HTTPResponse(raw, method="POST")
        answer.begin()
        said = answer.read().decode()
    assert (answer.status, said) == (413, "At most 1 MB can be attached at once.")


def test_upload_without_length_is_cut_off(empty: App) -> None:
    def endless() -> Iterator[bytes]:
        yield HEAD % b"big.txt" + b"\r\n"
        for _ in range(100):
            yield b"x" * 65536

    guest = HttpVisitor(empty.url, None)
    with suppress(httpx.TransportError):  # if the connection closes before the whole body is sent
        assert guest.ask("POST", f"{API}upload", content=endless(), headers=FORM).status == 413
    becomes([], lambda: on_disk(empty))


@pytest.mark.parametrize(
    ("sizes", "language", "sentence"),
    [
        ((1, 1, 1, 1), "en", "At most 3 files can be attached at once."),
        ((1, 1, 1, 1), "de", "Es lassen sich höchstens 3 Dateien auf einmal anhängen."),
        ((10, 700_001), "en", "1.txt is larger than 1 MB, which is the most."),
        ((600_000, 600_000), "en", "At most 1 MB can be attached at once."),
    ],
    ids=["many", "many-in-german", "large", "large-together"],
)
def test_refused_request_leaves_nothing(empty: App, sizes: tuple[int, ...], language: str, sentence: str) -> None:
    program = HttpVisitor(empty.url)
    assert sent(program, *sizes, **{"accept-language": language}) == (413, sentence)
    assert on_disk(empty) == []
    cleared(empty, program, sent(program, 10))


BROKEN = {
    "cut off": HEAD % b"a.txt" + b"half",
    "no file": b'--b\r\nContent-Disposition: form-data; name="files"\r\n\r\ntext\r\n--b--\r\n',
    "another field": HEAD.replace(b'"files"', b'"other"') % b"a.txt" + b"text\r\n--b--\r\n",
    "no form": b"nothing of the kind",
    "nothing": b"",
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
def test_malformed_form_leaves_nothing(empty: App, body: bytes) -> None:
    said = HttpVisitor(empty.url).ask("POST", f"{API}upload", content=body, headers=FORM)
    assert (said.status, said.json) == (400, {"detail": "The upload was not understood."})
    assert on_disk(empty) == []


def test_refused_upload_does_not_hold_its_connection(empty: App) -> None:
    """A proxy sends the next request of any visitor on the same connection."""
    connection = HTTPConnection("127.0.0.1", empty.port, timeout=LINGER_SECONDS / 2)
    with closing(connection):
        connection.request("POST", f"{API}upload", BROKEN["no file"], FORM)
        with connection.getresponse() as answer:
            assert (answer.status, bool(answer.read())) == (400, True)
        connection.request("GET", "/healthz")
        with connection.getresponse() as answer:
            assert answer.status == 200


def test_large_field_costs_no_memory(start_app: Callable[..., App]) -> None:
    app = start_app("[uploads]\nmb_per_request = 300\nmb_per_visitor = 300\nmb_of_guests = 300")
    assert app.process is not None
    before = held_memory(app.process.pid)

    def body() -> Iterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="files"\r\n\r\n'
        for _ in range(200):
            yield b"x" * MB
        yield b"\r\n--b--\r\n"

    assert HttpVisitor(app.url).ask("POST", f"{API}upload", content=body(), headers=FORM).status == 400
    assert held_memory(app.process.pid) - before < 60 * MB
    app.stop()


def test_broken_off_upload_is_removed(empty: App) -> None:
    head = f"content-type: {FORM['content-type']}\r\ncontent-length: 900000"
    with sending(empty, head, HEAD % b"half.txt", HALF):
        becomes(["half.txt"], lambda: on_disk(empty))
    becomes([], lambda: on_disk(empty))


# All requests of a visitor, and of all visitors


def test_upload_counts_for_its_visitor_until_sent(empty: App) -> None:
    first, second = HttpVisitor(empty.url), HttpVisitor(empty.url)
    paths = [first.upload(f"{number}.png", random_png(HALF_MB)) for number in range(4)]
    status, sentence = sent(first, 600_000)
    assert status == 413
    assert "2 MB of these is the most" in sentence
    theirs = sent(second, 100_000)
    assert theirs[0] == 200
    for path in paths:
        first.say("!tokens 3", path, new=True)
    cleared(empty, second, theirs)
    cleared(empty, first, sent(first, 100_000))


def test_guests_share_one_quota(empty: App) -> None:
    guest, visitor = HttpVisitor(empty.url, None), HttpVisitor(empty.url)
    paths = [guest.upload(f"{number}.png", random_png(HALF_MB)) for number in range(3)]
    status, sentence = sent(HttpVisitor(empty.url, None), 100_000)
    assert status == 413
    assert "Visitors without cookies may attach 1.5 MB together" in sentence
    cleared(empty, visitor, sent(visitor, 100_000), left=["0.png", "1.png", "2.png"])
    for path in paths:
        guest.say("!tokens 3", path, new=True)
    cleared(empty, guest, sent(guest, 100_000))


# The table


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., UnsentFiles]]:
    made: list[UnsentFiles] = []

    def open_uploads(clock: Clock | None = None, free: int = 10**12, **limits: float) -> UnsentFiles:
        made.append(UnsentFiles(tmp_path, UploadSettings(**limits), clock=clock or Clock(), free=lambda _: free))  # type: ignore[arg-type]
        return made[-1]

    yield open_uploads
    for one in made:
        one.close()
    assert list(tmp_path.iterdir()) == []


async def test_largest_account_makes_space(opened: Callable[..., UnsentFiles]) -> None:
    uploads = opened(mb_in_all=1)
    large = [await uploads.add("large", "a.txt", b"x" * 300_000) for _ in range(3)]
    small = await uploads.add("small", "b.txt", b"x" * 150_000)
    assert [path.exists() for path in large] == [False, True, True]
    assert small.exists()
    with pytest.raises(Limited, match="no room for more files"):
        await uploads.add("large", "c.txt", b"x" * 300_000)
    assert small.exists()


async def test_disk_is_shared_with_others(opened: Callable[..., UnsentFiles]) -> None:
    uploads = opened(free=1_000_000, disk_percent=50)
    await uploads.add("ann", "a.txt", b"x" * 400_000)
    with pytest.raises(Limited, match="no room for more files"):
        await uploads.add("ann", "b.txt", b"x" * 400_000)


async def test_unremovable_folder_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Housekeeping continues as long as something is removed, so it would never end."""
    uploads = UnsentFiles(tmp_path, UploadSettings())
    stray = uploads.folder / "stray"
    stray.mkdir()
    os.utime(stray, (0, 0))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        assert await uploads.expire() == 0
    assert await uploads.expire() == 1
    assert not stray.exists()
    uploads.close()


async def test_tiny_files_count_for_more(opened: Callable[..., UnsentFiles]) -> None:
    uploads = opened(mb_per_visitor=1)
    for _ in range(MB // MIN_FILE_BYTES):
        await uploads.add("ann", "a.txt", b"")
    with pytest.raises(Limited):
        await uploads.add("ann", "a.txt", b"x" * MIN_FILE_BYTES)


async def test_freeing_space_takes_linear_time(opened: Callable[..., UnsentFiles]) -> None:
    def steps(files: int) -> int:
        """Count the lines of Python that run to free half of the space."""
        uploads, lines = opened(mb_per_visitor=10**6, mb_in_all=files * MIN_FILE_BYTES / MB), count()
        for number in range(files):
            uploads.record(uploads.folder / str(number) / "a.txt", "large", 1)

        def trace(_: FrameType, event: str, __: Any) -> Any:
            if event == "line":
                next(lines)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            uploads.check("small", files * MIN_FILE_BYTES // 2)
            uploads.count("small", files * MIN_FILE_BYTES // 2)
        finally:
            sys.settrace(before)
        return next(lines)

    assert steps(200) > 200, "a step for each file"
    assert steps(800) < 6 * steps(200), "four times the files take sixteen times the work"


async def test_declared_length_removes_nothing(opened: Callable[..., UnsentFiles]) -> None:
    uploads = opened(mb_in_all=1)
    large = [await uploads.add("large", "a.txt", b"x" * 300_000) for _ in range(3)]
    uploads.check("small", 200_000)
    assert all(path.exists() for path in large)
    uploads.remove(map(str, large), "large")


async def test_number_of_unsent_files_is_limited(
    opened: Callable[..., UnsentFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "FILES_PER_VISITOR", 3)
    monkeypatch.setattr(table, "FILES_OF_GUESTS", 2)
    monkeypatch.setattr(table, "FILES_IN_ALL", 5)
    uploads = opened()
    first = [await uploads.add("ann", "a.txt", b"x") for _ in range(3)]
    with pytest.raises(Limited, match="You have attached 3 files"):
        uploads.check("ann", 0, 1)
    for _ in range(2):
        await uploads.add(None, "b.txt", b"x")
    with pytest.raises(Limited, match="Visitors without cookies may attach 2 files"):
        uploads.check(None, 0, 1)
    await uploads.add("bob", "c.txt", b"x")
    assert [path.exists() for path in first] == [False, True, True]


async def test_unsent_files_expire(opened: Callable[..., UnsentFiles]) -> None:
    uploads = opened(clock := Clock(), minutes=50, mb_per_visitor=0.7)
    old = await uploads.add("ann", "a.txt", HALF)
    clock.now += 49 * 60
    new = await uploads.add("bob", "b.txt", HALF)
    assert await uploads.expire() == 0
    clock.now += 60
    assert await uploads.expire() == 1
    assert (old.exists(), old.parent.exists(), new.exists()) == (False, False, True)
    assert (await uploads.add("ann", "a.txt", HALF)).exists()


async def test_expiry_removes_orphans(opened: Callable[..., UnsentFiles]) -> None:
    uploads = opened()
    stray = uploads.folder / "stray"
    stray.mkdir()
    (stray / "half.txt").write_text("half")
    assert await uploads.expire() == 0
    os.utime(stray, (0, 0))
    assert await uploads.expire() == 1
    assert not stray.exists()


async def test_slow_upload_is_not_removed(opened: Callable[..., UnsentFiles]) -> None:
    uploads = opened()
    form = UploadForm(b"b", uploads.folder, most_files=1, most_bytes=MB)
    with uploads.using(form.sizes.keys()):
        form.write(HEAD % b"slow.txt" + b"first")
        (folder,) = (path.parent for path in form.sizes)
        os.utime(folder, (0, 0))  # as if it had started an hour ago
        assert await uploads.expire() == 0
        form.write(b" second\r\n--b--\r\n")
        assert [path.read_bytes() for path in form.finish()] == [b"first second"]
    os.utime(folder, (0, 0))
    assert await uploads.expire() == 1
    assert not folder.exists()


async def test_file_being_sent_stays(opened: Callable[..., UnsentFiles]) -> None:
    uploads = opened(clock := Clock(), mb_in_all=1)
    path = await uploads.add("ann", "a.txt", HALF)
    clock.now += 3600
    with uploads.using([path]):
        assert await uploads.expire() == 0
        with pytest.raises(Limited):  # another visitor's upload does not remove it either
            await uploads.add("bob", "b.txt", b"x" * 600_000)
        assert path.exists()
    assert await uploads.expire() == 1
    assert not path.exists()


async def test_expiry_blocks_nobody(opened: Callable[..., UnsentFiles], monkeypatch: pytest.MonkeyPatch) -> None:
    """The server responds while the disk is slow, and a file that is sent meanwhile frees its space only once."""
    uploads, begun, go_on = opened(clock := Clock(), mb_per_visitor=1), threading.Event(), threading.Event()
    paths = [await uploads.add("ann", "a.txt", b"x") for _ in range(3)]
    clock.now += 3600
    unlink, waited = Path.unlink, list[bool]()

    def slow_unlink(path: Path, missing_ok: bool = False) -> None:
        begun.set()
        waited.append(go_on.wait(60))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", slow_unlink)
    expiring = asyncio.create_task(uploads.expire())
    assert await asyncio.to_thread(begun.wait, 60)
    uploads.remove(map(str, paths), "ann")
    go_on.set()
    assert await expiring == 3
    assert waited == [True] * 3
    assert not any(path.exists() for path in paths)
    assert (await uploads.add("ann", "b.txt", b"x" * (MB - MIN_FILE_BYTES))).exists()


async def test_only_its_visitor_removes_a_file(opened: Callable[..., UnsentFiles]) -> None:
    uploads = opened()
    path = await uploads.add("ann", "a.txt", b"x")
    for visitor in ("bob", None):
        uploads.remove([str(path), "/etc/passwd"], visitor)
    assert path.exists()
    uploads.remove([str(path)], "ann")
    assert not path.exists()


def test_leftovers_go_and_foreign_files_stay(tmp_path: Path) -> None:
    running = UnsentFiles(tmp_path, UploadSettings())
    dead, others, hidden = tmp_path / f"{PREFIX}dead", tmp_path / f"{PREFIX}unlocked", tmp_path / "0af3"
    for folder in (dead, others, hidden):
        folder.mkdir()
        (folder / "file.txt").write_text("text")
    (dead / LOCK).touch()
    assert remove_leftovers(tmp_path) == 1
    assert sorted(tmp_path.iterdir()) == sorted([running.folder, others, hidden])
    running.close()


def test_restart_removes_files_of_killed_process(start_app: Callable[..., App]) -> None:
    app = start_app(CONFIG)
    shutil.copytree("docs/proxies", app.folder / "tmp" / "of-others")
    HttpVisitor(app.url).upload("kept.txt", b"text")
    assert "kept.txt" in on_disk(app)
    app.stop(signal.SIGKILL)
    app.start()
    assert "kept.txt" not in on_disk(app)
    assert (app.folder / "tmp" / "of-others").exists()
    app.stop()
    assert not list((app.folder / "tmp").glob(f"{PREFIX}*"))


NAMES = {
    "a.txt": "a.txt",
    "../../etc/x.html": "x.html",
    "..\\b.txt": "b.txt",
    "..": "file",
    "": "file",
    ".txt": "file.txt",
    "a:b?`$c\n.txt ": "abc.txt",
    "图" * 200 + ".png": "图" * 65 + ".png",
    "a." + "x" * 400: "a." + "x" * 99,
}


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name[:20]))
def test_names_are_made_safe(name: str) -> None:
    assert safe_name(name) == NAMES[name]


def test_visitors_know_files_by_the_names_they_gave() -> None:
    given = 'a "b" <c> & $d {1}: e|f? *!`.txt'
    path = Path("/tmp") / stored_name(f"../{given} ")
    assert safe_name(path.name) == path.name, "no sign that a file system could misread"
    assert path.suffix == ".txt"
    assert given_name(path) == given
    wide = "final\N{FULLWIDTH COLON} really\N{FULLWIDTH QUESTION MARK}.txt"
    assert given_name(Path(stored_name(wide))) == wide == stored_name(wide)


def test_as_many_files_at_once_as_in_one_message() -> None:
    assert UploadSettings().files_per_request == MAX_FILES
