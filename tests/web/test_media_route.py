"""The route of stored files: whole files and ranges, in pieces, from a folder and from elsewhere."""

from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import BinaryContent
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from agent.files.places import LocalFolder, Place, open_place
from agent.files.store import MediaStore
from agent.web.chat.temporary_stores import TemporaryMedia, TemporaryMemory
from agent.web.media_route import PIECE, add_media_route, byte_range, file_response, headers_of

SOUND = BinaryContent(bytes(range(256)) * 9000, media_type="audio/ogg")
"""2.3 MB"""


class MeasuredApp:
    """The app of one owner. Records the size of each piece of an answer."""

    def __init__(self, place: Place) -> None:
        self.media, self.app = MediaStore(place), FastAPI()
        self.pieces = list[int]()
        add_media_route(self.app, self.media)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def measure(message: Message) -> None:
            self.pieces.append(len(message.get("body", b"")))
            await send(message)

        if scope["type"] == "http":
            scope["state"] = {"visitor": "ann"}
        await self.app(scope, receive, measure)


@pytest.fixture(params=["file", "memory"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> MeasuredApp:
    return MeasuredApp(LocalFolder(tmp_path) if request.param == "file" else open_place("memory:"))


async def test_browser_keeps_no_file_of_a_temporary_chat(tmp_path: Path) -> None:
    memory = TemporaryMemory()
    media = TemporaryMedia(LocalFolder(tmp_path), memory)
    chat = memory.add("ann", None, 0.0).id
    picture, page = (BinaryContent(b"<p>", media_type=kind) for kind in ("image/png", "text/html"))
    for content, reference, caching, opens in (
        (SOUND, "message", "private, max-age=86400", "inline"),
        (picture, f"{chat}/message", "no-store", "inline"),
        (page, f"{chat}/message", "no-store", "attachment"),
        (BinaryContent(b"words", media_type="text/plain"), "message", "private, max-age=86400", "attachment"),
    ):
        headers = headers_of(await media.find("ann", await media.add("ann", content, reference)))
        assert (headers["cache-control"], headers["content-disposition"].partition(";")[0]) == (caching, opens)


async def test_range_of_a_file_that_changed_is_the_whole_file() -> None:
    media = MediaStore(open_place("memory:"))
    file = await media.find("ann", await media.add("ann", BinaryContent(b"words", media_type="audio/ogg"), "message"))
    for etag, status in ((headers_of(file)["etag"], 206), ('"another"', 200)):
        asked = [(b"range", b"bytes=1-2"), (b"if-range", etag.encode())]
        assert (
            file_response(file, Request({"type": "http", "headers": asked, "query_string": b""})).status_code == status
        )


async def test_file_comes_in_pieces_and_ranges(app: MeasuredApp) -> None:
    id_, size = await app.media.add("ann", SOUND, "message"), len(SOUND.data)
    theirs = await app.media.add("bob", SOUND, "message")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://app") as http:
        whole = await http.get(f"/media/{id_}")
        assert (whole.status_code, whole.content) == (200, SOUND.data)
        assert max(app.pieces) <= PIECE
        assert {name: whole.headers[name] for name in ("content-type", "content-disposition", "accept-ranges")} == {
            "content-type": "audio/ogg", "content-disposition": "inline", "accept-ranges": "bytes",
        }  # fmt: skip
        assert whole.headers["content-length"] == str(size)
        etag = whole.headers["etag"]
        assert etag == f'"{id_}"', "it is the file's own"
        for asked, start, end in (
            ("0-", 0, size),
            ("5-9", 5, 10),
            (f"{size - 1}-", size - 1, size),
            ("-7", size - 7, size),
        ):
            part = await http.get(f"/media/{id_}", headers={"range": f"bytes={asked}", "if-range": etag})
            assert (part.status_code, part.content) == (206, SOUND.data[start:end]), asked
            assert part.headers["content-range"] == f"bytes {start}-{end - 1}/{size}"
            assert part.headers["content-length"] == str(end - start)
        for changed in ({"range": "bytes=5-9", "if-range": '"another"'}, {}):
            assert (await http.get(f"/media/{id_}", headers=changed)).content == SOUND.data
        refused = await http.get(f"/media/{id_}", headers={"range": f"bytes={size}-"})
        assert (refused.status_code, refused.headers["content-range"]) == (416, f"bytes */{size}")
        for missing in (theirs, f"{'0' * 64}.ogg", "x"):
            assert (await http.get(f"/media/{missing}")).status_code == 404
        program = await app.media.add("ann", BinaryContent(b"<script>", media_type="text/html"), "message")
        saved = await http.get(f"/media/{program}?name=page.html")
        assert saved.headers["content-disposition"] == "attachment; filename*=UTF-8''page.html"
        assert saved.headers["content-type"] == "application/octet-stream"


@given(text=st.text(), size=st.integers(0, 50))
def test_any_range_is_answered(text: str, size: int) -> None:
    for asked in (text, f"bytes={text}", f"bytes={text}-{text}"):
        found = byte_range(asked, size)
        assert found is None or (found[0] >= 0 and found[1] <= size)


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 50))
def test_range_is_part_of_the_file(first: int, last: int, size: int) -> None:
    data = bytes(range(size))
    cases = {
        f"{first}-": data[first:],
        f"-{last}": data[max(0, size - last) :],
        f"{first}-{last}": data[first : last + 1],
    }
    for asked, expected in cases.items():
        found = byte_range(f"bytes={asked}", size)
        if found is None:
            assert last < first
        else:
            assert data[slice(*found)] == expected
