"""Attached files on a real S3 server, through the real driver. The laws of all places are in test_places.py."""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

import fsspec
import pytest
from pydantic_ai.messages import BinaryContent

from agent.errors import HistoryError, NotFound
from agent.files.places import S3_OPTIONS, Place, RemoteFolder, open_place
from agent.files.store import MediaStore, id_of
from tests.support.ports import free_port
from tests.support.s3_server import SECRET, s3_server

pytestmark = pytest.mark.s3

PICTURE = BinaryContent(b"\x89PNG" + bytes(5000), media_type="image/png")
WRONG = "another-secret-key"
NOT_STORED = r"^The files of this message could not be stored\.$"


async def test_another_process_finds_the_files(s3_folder: str) -> None:
    id_ = await MediaStore(open_place(s3_folder)).add("ann", PICTURE, "one")
    other = MediaStore(open_place(s3_folder))
    assert (await other.read("ann", id_)).data == PICTURE.data
    assert await other.sizes() == {"ann": 5004}
    with pytest.raises(NotFound):
        await other.read("bob", id_)
    assert await other.remove_references("ann", {id_: ["one"]}) == 1
    with pytest.raises(NotFound):
        await MediaStore(open_place(s3_folder)).find("ann", id_)


async def test_many_visitors_store_at_once(s3_folder: str) -> None:
    media, owners = MediaStore(open_place(s3_folder)), [f"visitor{number}" for number in range(12)]
    ids = await asyncio.gather(*(media.add(owner, PICTURE, str(turn)) for owner in owners for turn in range(2)))
    assert len(set(ids)) == len(owners)
    assert await MediaStore(open_place(s3_folder)).sizes() == dict.fromkeys(owners, 5004)


async def test_wrong_key_is_refused_in_one_sentence(
    s3_folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    id_ = await MediaStore(open_place(s3_folder)).add("ann", PICTURE, "one")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", WRONG)
    media = MediaStore(open_place(s3_folder))
    with pytest.raises(HistoryError, match=NOT_STORED) as refused:
        await media.add("ann", PICTURE, "two")
    with pytest.raises(NotFound):
        await media.read("ann", id_)
    with pytest.raises(OSError) as failed:  # noqa: PT011 - its text is what matters below
        await media.remove_references("ann", {id_: ["one"]})
    said = f"{refused.value!r} {refused.value.__cause__!r} {failed.value!r} {caplog.text}"
    assert WRONG not in said
    assert SECRET not in said
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert (await MediaStore(open_place(s3_folder)).read("ann", id_)).data == PICTURE.data


async def test_server_that_is_down_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A message is refused while the server is away. When it is back, all files are there and can be deleted."""
    caplog.set_level(logging.DEBUG)
    with s3_server(tmp_path) as server:
        server.set_variables(monkeypatch)
        media = MediaStore(open_place(server.url("media")))
        id_ = await media.add("ann", PICTURE, "one")
        server.stop()
        with pytest.raises(HistoryError, match=NOT_STORED):
            await media.add("ann", BinaryContent(b"\x89PNG2", media_type="image/png"), "two")
        with pytest.raises(OSError):  # noqa: PT011
            await media.remove_references("ann", {id_: ["one"]})
    assert SECRET not in caplog.text
    with s3_server(tmp_path) as server:
        server.set_variables(monkeypatch)
        media = MediaStore(open_place(server.url("media")))
        assert (await media.read("ann", id_)).data == PICTURE.data
        assert await media.remove_references("ann", {id_: ["one"]}) == 1
        assert await media.sizes() == {}


class SilentServer:
    """Accepts every connection and never answers. `connections` is their number."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._thread = Thread(target=self._accept)
        self._thread.start()

    def close(self) -> None:
        """End the server with its connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        with ExitStack() as accepted:
            while True:
                try:
                    connection, _ = self._listener.accept()
                except OSError:  # it was closed
                    return
                accepted.enter_context(connection)
                self.connections += 1


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentServer]:
    """Return a server that does not answer, and let the driver wait shorter for it than it does by default."""
    server = SilentServer()
    set_endpoint(monkeypatch, server.url)
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": {"read_timeout": 0.3}})
    monkeypatch.setattr("agent.files.places.WRITE_SECONDS", 0.6)
    yield server
    server.close()


def set_endpoint(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("AWS_ENDPOINT_URL_S3", url),
    ):
        monkeypatch.setenv(name, value)


CALLS: dict[str, Callable[[Place], object]] = {
    "write": lambda place: place.write("ann/a.png", b"1"),
    "write much": lambda place: place.write("ann/a.png", bytes(100_000)),
    "read": lambda place: place.read("ann/a.png"),
    "size": lambda place: place.size("ann/a.png"),
    "files": lambda place: place.files("ann"),
    "remove": lambda place: place.remove("ann/a.png"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=[*CALLS])
def test_server_that_never_answers_is_given_up(silent: SilentServer, call: Callable[[Place], object]) -> None:
    """There are two attempts. The driver alone makes 25, and waits for ever for the answer to a write."""
    with pytest.raises(ConnectionError, match=r"^the place of the files does not answer: \w+$"):
        call(open_place("s3://files/media"))
    assert 1 <= silent.connections <= S3_OPTIONS["retries"]["total_max_attempts"]


@pytest.mark.parametrize("call", CALLS.values(), ids=[*CALLS])
def test_server_that_is_not_there_is_given_up(monkeypatch: pytest.MonkeyPatch, call: Callable[[Place], object]) -> None:
    set_endpoint(monkeypatch, f"http://127.0.0.1:{free_port()}")
    with pytest.raises(ConnectionError, match=r"^the place of the files does not answer: EndpointConnectionError$"):
        call(open_place("s3://files/media"))


async def test_silent_server_refuses_a_message_in_one_sentence(silent: SilentServer) -> None:
    media = MediaStore(open_place("s3://files/media"))
    with pytest.raises(HistoryError, match=NOT_STORED):
        await media.add("ann", PICTURE, "one")
    with pytest.raises(NotFound):
        await media.read("ann", id_of("ann", PICTURE))


def test_timeouts_reach_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration of fsspec wins."""
    set_endpoint(monkeypatch, f"http://127.0.0.1:{free_port()}")
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": {"read_timeout": 7}})
    place = open_place("s3://files/media")
    assert isinstance(place, RemoteFolder)
    config = place._fs.s3.meta.config
    assert (config.connect_timeout, config.read_timeout) == (3, 7)
    assert config.retries == {"mode": "standard", "total_max_attempts": 2}
