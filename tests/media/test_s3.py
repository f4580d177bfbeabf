"""Attached files on a real S3 server, through the real driver. The laws of all places are in test_places.py."""

import asyncio
import logging
from pathlib import Path

import pytest
from pydantic_ai.messages import BinaryContent

from agent.errors import HistoryError, NotFound
from agent.media.places import open_place
from agent.media.store import MediaStore
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
