"""The canary: two made-up visitors who ask for each other's data over the app's own HTTP routes.

It runs once after the start, and on request. If one of them gets what belongs to the other, the app is not ready until
a later run finds nothing. It needs no model, and deletes what it has stored.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit
from uuid import uuid4

from httpx import ASGITransport, AsyncClient, HTTPError, Response
from starlette.types import ASGIApp

START_SECONDS = 5.0
"""Seconds after the start, when the first page has been served."""
RUN_SECONDS = 30.0
"""The most seconds of one run."""
RERUN_SECONDS = 60.0
"""The shortest time between two runs, so that requests for them cost little."""
CROSSED = "One visitor could reach what belongs to another. The log says how."

log = logging.getLogger(__name__)


class Crossing(Exception):
    """A visitor has got or changed what belongs to another one."""


class Inconclusive(Exception):
    """A visitor cannot use its own data, for example because the store is away. So nothing is known about others."""


class Canary:
    """Runs the check on an application, which is served below the path of `root_path`.

    `problem` is a sentence while the last run with a result found a crossing.
    """

    def __init__(self, app: ASGIApp, root_path: str = "") -> None:
        self._app, self._prefix = app, urlsplit(root_path).path
        self._lock = asyncio.Lock()
        self._ran_at: float | None = None
        self.problem = ""

    async def run_after_start(self) -> None:
        """Run the check when the first page has had its time."""
        await asyncio.sleep(START_SECONDS)
        await self.run()

    async def run_if_due(self) -> None:
        """Run the check, unless the last run began less than `RERUN_SECONDS` ago."""
        async with self._lock:
            is_due = self._ran_at is None or monotonic() - self._ran_at >= RERUN_SECONDS
        if is_due:
            await self.run()

    async def run(self) -> None:
        """Run the check and set `problem`."""
        async with self._lock:
            self._ran_at = monotonic()
            try:
                async with asyncio.timeout(RUN_SECONDS):
                    await _check(partial(_client, self._app, self._prefix))
                self.problem = ""
            except Crossing as crossing:
                self.problem = CROSSED
                log.error("visitors are not separated: %s", crossing)
            except (Inconclusive, HTTPError, TimeoutError) as error:
                log.warning("it could not be checked whether visitors are separated: %s", error or "it took too long")
            except Exception:
                log.exception("it could not be checked whether visitors are separated")


class _Visitor:
    """A made-up visitor whose conversation, message and file contain `word`, and are deleted at the end."""

    def __init__(self, client: Callable[[], AsyncClient]) -> None:
        self._http = client()
        self.word = f"canary{uuid4().hex}"
        self.conversation = self.message = self.file = ""

    async def __aenter__(self) -> Self:
        """Get a cookie, import a conversation, and upload a file."""
        try:
            await self.own("GET", "/config")
            answer = await self.own("POST", "/import", content=_conversation_file(self))
            imported: list[str] = json.loads(answer.text.splitlines()[-1]).get("conversations", [])
            if not imported:
                raise Inconclusive(f"the import was refused: {answer.text[-200:]}")
            (self.conversation,) = imported
            if len(hits := await self.hits()) != 1:
                raise Inconclusive(f"a search found {len(hits)} conversations instead of one")
            self.message = hits[0]["entry"]
            files = {"files": (f"{self.word}.txt", self.word.encode())}
            (self.file,) = (await self.own("POST", "/gradio_api/upload", files=files)).json()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._http.delete("/own-data")
        finally:
            await self._http.aclose()

    @property
    def title(self) -> str:
        """The title of the conversation."""
        return f"A test by {self.word}"

    async def ask(self, method: str, path: str, **more: Any) -> Response:
        """Make a request with this visitor's cookie."""
        return await self._http.request(method, path, **more)

    async def own(self, method: str, path: str, **more: Any) -> Response:
        """Make a request for the visitor's own data. Raises `Inconclusive` if it fails."""
        answer = await self.ask(method, path, **more)
        if answer.status_code != 200:
            raise Inconclusive(f"{method} {path} answered {answer.status_code}")
        return answer

    async def hits(self) -> list[dict[str, Any]]:
        """Search for the visitor's own word."""
        return (await self.own("GET", f"/conversations?q={self.word}")).json()["hits"]

    async def check_own(self) -> None:
        """Raise `Crossing` unless all is there as it was stored. Otherwise the other's refusals would prove nothing."""
        if [(hit["id"], hit["title"]) for hit in await self.hits()] != [(self.conversation, self.title)]:
            raise Crossing("a conversation was changed or deleted")
        for path in (f"/export/{self.conversation}", f"/gradio_api/file={self.file}"):
            if self.word not in (await self.own("GET", path)).text:
                raise Crossing(f"the data behind {path} was changed")


async def _check(client: Callable[[], AsyncClient]) -> None:
    """Let two visitors, and one without a cookie, ask for what belongs to the others. Raises `Crossing`."""
    async with AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(_Visitor(client)) for _ in range(2)]
        for owner, other in ((first, second), (second, first)):
            await owner.check_own()
            await _look(other, owner)
            async with client() as nobody:
                for path in _named(owner):
                    _judge(owner, "GET", path, await nobody.get(path), is_named=True)
            await owner.check_own()


async def _look(other: _Visitor, owner: _Visitor) -> None:
    """Ask as `other` for all that `owner` has, and try to change it."""
    for path in _named(owner):
        _judge(owner, "GET", path, await other.ask("GET", path), is_named=True)
    for path in ("/conversations", f"/conversations?q={owner.word}", "/export", "/export?format=markdown"):
        _judge(owner, "GET", path, await other.ask("GET", path), is_named=False)
    one = f"/conversations/{owner.conversation}"
    for method, path, body in (
        ("PATCH", one, {"title": "Taken"}),
        ("DELETE", one, None),
        ("POST", f"{one}/restore", None),
    ):
        _judge(owner, method, path, await other.ask(method, path, json=body), is_named=True)


def _client(app: ASGIApp, prefix: str) -> AsyncClient:
    """Return a client without cookies, which makes its requests within this process."""
    transport = ASGITransport(app, raise_app_exceptions=False)
    return AsyncClient(transport=transport, base_url=f"http://127.0.0.1{prefix}", trust_env=False)


def _named(owner: _Visitor) -> tuple[str, ...]:
    one = f"/conversations/{owner.conversation}"
    return one, f"{one}/messages/{owner.message}", f"/export/{owner.conversation}", f"/gradio_api/file={owner.file}"


def _judge(owner: _Visitor, method: str, path: str, answer: Response, *, is_named: bool) -> None:
    """Raise `Crossing` if an answer to somebody else has the owner's word, or accepts the owner's ids."""
    if owner.word in answer.text or (is_named and answer.status_code < 400):
        raise Crossing(f"{method} {path} answered {answer.status_code} to another visitor")


def _conversation_file(visitor: _Visitor) -> str:
    """Return a conversation with one message, as ChatGPT exports it."""
    content = {"content_type": "text", "parts": [f"Nobody but me can read {visitor.word}."]}
    message = {"id": "1", "author": {"role": "user"}, "content": content}
    node: dict[str, Any] = {"id": "1", "message": message, "parent": None, "children": []}
    return json.dumps([{"title": visitor.title, "mapping": {"1": node}, "current_node": "1"}])
