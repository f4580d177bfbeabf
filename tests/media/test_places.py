"""Laws of the places of files, and the files of owners in them."""

from collections.abc import Callable
from pathlib import Path
from time import time
from typing import Any, ClassVar

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import BinaryContent

from agent.errors import ConfigError, HistoryError, NotFound
from agent.files.places import DRAFT_SECONDS, LocalFolder, Place, RemoteFolder, open_place
from agent.files.store import MediaStore, id_of, ids_in, is_id
from tests.support.failing_places import FailingPlace, Fuse
from tests.support.s3_server import S3Place

PICTURE = BinaryContent(b"\x89PNG" + bytes(5000), media_type="image/png")


class RefusingRanges(MemoryFileSystem):
    """Answers like S3 to a range that has no byte of the file, and reads all of it instead of nothing."""

    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        whole = super().cat_file(path, **options)
        if start is not None and start >= len(whole):
            raise OSError(22, "The requested range is not satisfiable")
        return whole if end == 0 else whole[start:end]


class Timeout(Exception):
    """The time-out of a driver that has its own."""


class Failing(MemoryFileSystem):
    """Raises these errors first, and notes its calls."""

    cachable = False
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors, self.calls = [*errors], list[str]()

    def _fail(self, name: str) -> None:
        self.calls.append(name)
        if self.errors:
            raise self.errors.pop(0)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        self._fail("write")
        super().pipe_file(path, value, mode, **options)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        self._fail("read")
        return super().cat_file(path, start, end, **options)

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        self._fail("size")
        return super().info(path, **options)


PLACES: dict[str, Callable[[Path], Place]] = {
    "file": lambda folder: open_place(f"file:{folder}/files"),
    "url": lambda folder: open_place(f"file://{folder}/files"),
    "memory": lambda _: open_place("memory:"),
    "refusing": lambda folder: RemoteFolder(RefusingRanges(skip_instance_cache=True), f"/{folder.name}/files"),
    "named": lambda folder: open_place(f"memory://{folder.name}/files"),
}


@pytest.fixture(params=[*PLACES, pytest.param("s3", marks=pytest.mark.s3)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "s3":
        return S3Place.open(request.getfixturevalue("s3_folder"))
    return PLACES[request.param](tmp_path)


def test_place_keeps_what_was_written(place: Place) -> None:
    assert (place.folders(), place.files("ann"), place.size("ann/a.png")) == ([], [], None)
    with pytest.raises(FileNotFoundError):
        place.read("ann/a.png")
    with pytest.raises(FileNotFoundError):
        place.read("ann/a.png", 0, 0)
    began = time() - 5
    place.write("ann/a.png", b"0123456789")
    place.write("ann/a.png", b"9876543210")
    place.write("ann/.references/a.png/one", b"")
    place.write("bob/b.png", b"")
    assert sorted(place.folders()) == ["ann", "bob"]
    [file] = place.files("ann")
    assert (file.name, file.size) == ("a.png", 10)
    assert began < file.written_at < time() + 5
    assert [found.name for found in place.files("ann/.references/a.png")] == ["one"]
    assert (place.size("ann/a.png"), place.size("bob/b.png"), place.size("ann")) == (10, 0, place.size("ann"))
    assert place.read("bob/b.png") == b""
    parts = [place.read("ann/a.png", *part) for part in ((), (3,), (3, 5), (8, 99), (99, 100), (0, 0))]
    assert parts == [b"9876543210", b"6543210", b"65", b"10", b"", b""]
    place.remove("ann/a.png")
    place.remove("ann/a.png")
    place.remove("bob/b.png")
    assert (place.files("ann"), place.folders()) == ([], ["ann"])
    place.remove("ann/.references/a.png/one")
    assert place.folders() == []


def test_local_files_are_private_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = LocalFolder(tmp_path / "files")
    place.write("ann/a.png", b"data")
    place.write("ann/.references/a.png/one", b"")
    assert [path for path in (tmp_path / "files").rglob("*") if path.stat().st_mode & 0o077] == []
    assert (tmp_path / "files").stat().st_mode & 0o077 == 0
    with pytest.raises(TypeError):
        place.write("bob/b.png", "text")  # type: ignore[arg-type]
    assert not (tmp_path / "files" / "bob").exists(), "a failed write left a draft"
    draft = tmp_path / "files" / "ann" / ".draft"
    draft.write_bytes(b"x")
    assert [file.name for file in place.files("ann")] == ["a.png"]
    place.remove_drafts("ann")
    assert draft.exists()
    monkeypatch.setattr("agent.files.places.time", lambda: time() + DRAFT_SECONDS + 60)
    place.remove_drafts("ann")
    assert sorted(path.name for path in (tmp_path / "files" / "ann").iterdir()) == [".references", "a.png"]


def test_unusable_place_is_told() -> None:
    with pytest.raises(ConfigError, match=r"^Files cannot be kept at s3: Install s3fs"):
        open_place("s3://bucket/folder")
    with pytest.raises(ConfigError, match=r"^Files cannot be kept at nowhere: Protocol not known: nowhere\.$"):
        open_place("nowhere://bucket/folder")


@pytest.mark.parametrize("error", [Timeout("secret"), TimeoutError("secret"), ConnectionResetError("secret")], ids=repr)
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("write", lambda place: place.write("ann/a.png", b"1")),
        ("read", lambda place: place.read("ann/a.png")),
        ("size", lambda place: place.size("ann/a.png")),
    ],
    ids=["write", "read", "size"],
)
def test_place_that_is_away_is_asked_once(name: str, call: Callable[[Place], object], error: Exception) -> None:
    """The driver has tried again already. Each call can take as long as its time-out."""
    fs = Failing(error)
    with pytest.raises(ConnectionError, match=r"^the place of the files does not answer: \w+$"):
        call(RemoteFolder(fs, "/away"))
    assert fs.calls == [name]


def test_answer_that_was_cut_is_read_again() -> None:
    fs = Failing()
    place = RemoteFolder(fs, "/cut")
    place.write("ann/a.png", b"0123")
    fs.errors, fs.calls = [ValueError("the answer was cut")], []
    assert place.read("ann/a.png", 1) == b"123"
    assert fs.calls == ["read", "size", "read"]


def test_place_tells_no_password(tmp_path: Path) -> None:
    assert open_place("memory://ann:secret@bucket/folder").label == "memory://bucket/folder"
    assert open_place(f"file:{tmp_path}").label == str(tmp_path)
    with pytest.raises(ConfigError, match=r"^Files cannot be kept at ftp") as refused:
        open_place("ftp://ann:secret@127.0.0.1:1/folder")
    assert "secret" not in str(refused.value)


@given(owners=st.tuples(*[st.from_regex(r"[0-9A-Za-z_-]{1,64}", fullmatch=True)] * 2), data=st.binary(max_size=100))
def test_id_tells_the_owner_and_the_bytes_apart(owners: tuple[str, str], data: bytes) -> None:
    one, other = (id_of(owner, BinaryContent(data, media_type="image/png")) for owner in owners)
    assert (one == other) == (owners[0] == owners[1])
    assert one != id_of(owners[0], BinaryContent(data + b"\0", media_type="image/png"))
    assert is_id(one)
    assert one.endswith(".png")
    assert ids_in(f'{{"url": "/media/{one}"}} {other} abc{one}x') == {one, other}


async def test_same_file_is_stored_once(place: Place) -> None:
    media = MediaStore(place)
    id_ = await media.add("ann", PICTURE, "one")
    assert await media.add("ann", PICTURE, "two") == id_
    theirs = await media.add("bob", PICTURE, "one")
    assert theirs != id_
    assert await media.sizes() == {"ann": 5004, "bob": 5004}
    with pytest.raises(NotFound):
        await media.read("bob", id_)
    assert (await media.read("ann", id_)).data == PICTURE.data
    found = await media.find("ann", id_)
    assert await found.read(1, 4) == b"PNG"
    assert (found.id, found.media_type, found.size) == (id_, "image/png", 5004)
    assert await media.remove_references("ann", {id_: ["one"]}) == 0
    assert await media.remove_references("ann", {id_: ["two"]}) == 1
    with pytest.raises(NotFound):
        await media.find("ann", id_)
    assert await media.sizes() == {"bob": 5004}


async def test_old_ids_stay_readable(place: Place) -> None:
    media, id_ = MediaStore(place), f"{'0' * 32}.png"
    place.write(f"ann/{id_}", PICTURE.data)
    assert (await media.read("ann", id_)).data == PICTURE.data
    assert await media.stored_before(time() + 60) == {"ann": {id_}}
    await media.remove_references("ann", {id_: ["one"]})
    assert place.folders() == []


async def test_cut_file_is_written_again(place: Place) -> None:
    """A process was killed while it wrote the file."""
    place.write(f"ann/{id_of('ann', PICTURE)}", PICTURE.data[:100])
    media = MediaStore(place)
    assert await media.sizes() == {"ann": 4096}
    assert (await media.read("ann", await media.add("ann", PICTURE, "one"))).data == PICTURE.data
    assert await media.sizes() == {"ann": 5004}


async def test_unknown_references_remove_nothing(place: Place) -> None:
    """The references of a copied folder can be lost, and those of other messages are not known then."""
    place.write(f"ann/{id_of('ann', PICTURE)}", PICTURE.data)
    assert await MediaStore(place).remove_references("ann", {id_of("ann", PICTURE): ["one"]}) == 0
    assert len(place.files("ann")) == 1


@pytest.mark.parametrize("call", [1, 3], ids=["reference", "file"])
async def test_full_place_is_told(place: Place, call: int) -> None:
    media = MediaStore(FailingPlace(place, Fuse(call, "error"), leaves_half=False))
    with pytest.raises(HistoryError, match=r"^The files of this message could not be stored\.$"):
        await media.add("ann", PICTURE, "one")
    assert place.files("ann") == []
    assert await media.sizes() == {}
