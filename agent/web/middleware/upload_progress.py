"""Tells a page the progress of its uploads. Gradio's own endpoint polls 20 times a second for any number of pages.

Reports only uploads that were begun. Each visitor and each network address has a share of the listeners. Knows HTTP.
"""

import asyncio
import json
from collections import Counter, OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field

from starlette.datastructures import QueryParams
from starlette.types import Receive, Scope, Send

from agent.web.client_address import client_address, has_full_share
from agent.web.middleware.isolation import visitor_id_of
from agent.web.middleware.requests import refuse

LISTENERS_PER_VISITOR = 4
LISTENERS_OF_GUESTS = 32
LISTENERS = 256
"""The most requests that listen at once: of one visitor, of all guests together and in all."""
MIN_LISTENERS_PER_ADDRESS = 4
"""Listeners that one network address can always have. Beyond these, it can have as many as are free."""
BEGIN_SECONDS = 3.0
"""Seconds that a listener waits for its upload to begin, because the page requests both at once."""
PAUSE_SECONDS = 0.1
"""Seconds between two messages to a listener."""
HEARTBEAT_SECONDS = 15.0
"""Seconds between messages to a listener while its upload stands still."""
FORGET_SECONDS = 60.0
"""Seconds for which an ended upload is kept, for a page that asks late."""
MAX_UPLOADS = 10_000
"""Uploads that are kept. The oldest are forgotten first."""


@dataclass(eq=False, slots=True)
class Upload:
    """The number of bytes received per file name."""

    sent: Counter[str] = field(default_factory=Counter[str])
    is_done: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, name: str, size: int) -> None:
        """Add received bytes."""
        self.sent[name] += size
        self._notify()

    def end(self) -> None:
        """Mark the upload as complete."""
        self.is_done = True
        self._notify()

    def _notify(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class UploadProgress:
    """Owns the table of uploads with an id, and the listeners. The isolation middleware ties each id to a visitor."""

    def __init__(self) -> None:
        self._uploads = OrderedDict[str, Upload]()
        self._listeners: list[tuple[str | None, str | None]] = []
        self._begun = asyncio.Event()

    def begin(self, upload_id: str) -> Upload:
        """Record an upload that begins. Nobody can listen to one without an id."""
        upload = Upload()
        if upload_id:
            self._uploads[upload_id] = upload
            while len(self._uploads) > MAX_UPLOADS:
                self._uploads.popitem(last=False)
            self._begun.set()
            self._begun = asyncio.Event()
        return upload

    def end(self, upload_id: str, upload: Upload) -> None:
        """Mark an upload as ended, and forget it after `FORGET_SECONDS`."""
        upload.end()
        if upload_id:
            asyncio.get_running_loop().call_later(FORGET_SECONDS, self._forget, upload_id, upload)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a listening request until its upload has ended or the client is gone."""
        listener = visitor_id_of(scope), client_address(scope)
        if self._is_beyond_share(*listener):
            await refuse(send, 429)
            return
        self._listeners.append(listener)
        disconnected = asyncio.create_task(_wait_for_end(receive))
        try:
            upload = await self._find(QueryParams(scope["query_string"]).get("upload_id", ""))
            if upload is None:
                await refuse(send, 404)
            else:
                await _send_progress(upload, disconnected, send)
        finally:
            disconnected.cancel()
            self._listeners.remove(listener)

    async def _find(self, upload_id: str) -> Upload | None:
        """Return the upload with this id. Waits briefly, because it can be about to begin."""
        with suppress(TimeoutError):
            async with asyncio.timeout(BEGIN_SECONDS):
                while upload_id not in self._uploads:
                    await self._begun.wait()
        return self._uploads.get(upload_id)

    def _forget(self, upload_id: str, upload: Upload) -> None:
        if self._uploads.get(upload_id) is upload:
            del self._uploads[upload_id]

    def _is_beyond_share(self, visitor: str | None, address: str | None) -> bool:
        """Return True if no listener is free, or if the visitor or address has its full share.

        An unknown address (None) has no share.
        """
        of_visitor = sum(one == visitor for one, _ in self._listeners)
        if of_visitor >= (LISTENERS_PER_VISITOR if visitor else LISTENERS_OF_GUESTS):
            return True
        free = LISTENERS - len(self._listeners)
        of_address = sum(one == address for _, one in self._listeners)
        return free <= 0 if address is None else has_full_share(of_address, free=free, always=MIN_LISTENERS_PER_ADDRESS)


async def _send_progress(upload: Upload, disconnected: asyncio.Task[None], send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    reported = Counter[str]()
    while not disconnected.done():
        changed, is_done = upload.changed, upload.is_done
        new_bytes = upload.sent - reported
        for name, size in new_bytes.items():
            await _send_event(send, {"msg": "update", "orig_name": name, "chunk_size": size})
        reported += new_bytes
        if is_done:
            await _send_event(send, {"msg": "done"})
            break
        waiting = asyncio.create_task(changed.wait())
        done, _ = await asyncio.wait(
            (waiting, disconnected), timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        waiting.cancel()
        if not done:
            await _send_event(send, {"msg": "heartbeat"})
        elif not upload.is_done:
            await asyncio.wait((disconnected,), timeout=PAUSE_SECONDS)
    await send({"type": "http.response.body", "body": b""})


async def _send_event(send: Send, message: dict[str, str | int]) -> None:
    body = f"data: {json.dumps(message)}\n\n".encode()
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _wait_for_end(receive: Receive) -> None:
    """Wait until the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
