"""Visitors and requests over raw HTTP, without the page."""

import http.client
import json
import socket
import ssl
from base64 import urlsafe_b64decode
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx

from agent.web.middleware.visitor_cookie import CookieJar
from tests.conftest import App

API = "/gradio_api/"


@dataclass
class Answer:
    """The part of an answer that has arrived."""

    status: int
    headers: httpx.Headers
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class HttpVisitor:
    """A visitor over raw HTTP. `cookie` None means no cookie; without the argument the app gives it one.

    A proxy on this machine forwards its `address`. Without `kept_connections` no connection is left to close.
    """

    def __init__(
        self,
        url: str,
        cookie: str | None = "",
        *,
        address: str = "",
        kept_connections: int = 0,
        verify: ssl.SSLContext | bool = True,
    ) -> None:
        if url.startswith("http:"):
            verify = False  # otherwise each client would read the system's certificates, in 30 ms of processor time
        limits = httpx.Limits(max_keepalive_connections=kept_connections)
        headers = {"x-forwarded-for": address} if address else None
        self.verify = verify
        self.http = httpx.Client(
            base_url=url, timeout=60, trust_env=False, limits=limits, headers=headers, verify=verify
        )
        self.session = uuid4().hex[:11]
        self.config = self.ask("GET", "/config")
        name, _, given = self.config.headers["set-cookie"].split(";")[0].partition("=")
        self.cookie = cookie = given if cookie == "" else cookie
        self.http.cookies.clear()
        if cookie is not None:
            self.http.headers["cookie"] = f"{name}={cookie}"
        self.events: list[dict[str, Any]] = self.config.json["dependencies"]

    def ask(self, method: str, path: str, *, seconds: float = 30.0, **more: Any) -> Answer:
        """Send a request, and read until the answer ends or `seconds` are over."""
        text, until = "", monotonic() + seconds
        more.setdefault("timeout", seconds)
        with self.http.stream(method, path, **more) as answer:
            with suppress(httpx.ReadTimeout, httpx.RemoteProtocolError):
                for piece in answer.iter_text():
                    text += piece
                    if monotonic() > until:
                        break
            return Answer(answer.status_code, answer.headers, text)

    def join(self, event: int | str, data: Sequence[Any] = (), *, session: str = "", **more: Any) -> Answer:
        """Ask for an event, given by its number or its name, in a session: one of the page, or begin the public one."""
        number = event if isinstance(event, int) else self.number_of(event)
        body = {"data": [*data], "fn_index": number, "session_hash": session or self.session, **more}
        return self.ask("POST", f"{API}{'queue/join' if number == self.chat else 'run/predict'}", json=body)

    def listen(self, session: str = "", seconds: float = 60.0) -> str:
        """Return all messages of a session until its events have ended."""
        query = {"session_hash": session or self.session}
        return self.ask("GET", f"{API}queue/data", params=query, seconds=seconds).text

    def number_of(self, name: str) -> int:
        """Return the number of an event of the page."""
        return next(event["id"] for event in self.events if event["api_name"] == name)

    @property
    def chat(self) -> int:
        """The number of the public event."""
        return self.number_of("chat")

    def begin(self, text: str, *paths: str, session: str = "", **options: Any) -> Answer:
        """Send a message through the public event."""
        files = [{"path": path, "meta": {"_type": "gradio.FileData"}} for path in paths]
        return self.join(self.chat, [{"text": text, "files": files}, "", options, None], session=session)

    def say(self, text: str, *paths: str, **options: Any) -> str:
        """Send a message and wait for the answer."""
        assert self.begin(text, *paths, **options).status == 200
        return self.listen()

    def upload(self, name: str, data: bytes, **more: Any) -> str:
        """Upload a file. Return its path on the server."""
        return self.ask("POST", f"{API}upload", files={"files": (name, data)}, **more).json[0]


def marker() -> str:
    """Return a word that no other test uses."""
    return f"amber{uuid4().hex}"


def cookie_name(url: str) -> str:
    """Return the name of the visitor's cookie at a page."""
    found = urlsplit(url)
    return CookieJar(found.scheme == "https", found.hostname or "", found.port, found.path.rstrip("/")).name


def forged(cookie: str) -> str:
    """Return the cookie with one changed character in its signature."""
    return cookie[:-5] + ("A" if cookie[-5] != "A" else "B") + cookie[-4:]


def owner_in(cookie: str) -> str:
    """Return the visitor that a cookie names. The name is not encrypted."""
    payload = cookie.split(".")[0]
    return json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))


def send_raw(app: App, method: str, target: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, str], str]:
    """Send a request with an unnormalised target. Return its answer until half a second of silence."""
    connection = http.client.HTTPConnection("127.0.0.1", app.port, timeout=60)
    try:
        connection.putrequest(method, target, skip_host="host" in headers, skip_accept_encoding=True)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        reading = connection.sock
        answer, text = connection.getresponse(), b""
        reading.settimeout(0.5)
        with suppress(TimeoutError, http.client.IncompleteRead):
            while piece := answer.read1(65536):
                text += piece
        return (
            answer.status,
            {name.lower(): value for name, value in answer.getheaders()},
            text.decode(errors="replace"),
        )
    finally:
        connection.close()


@contextmanager
def connected(app: App, *pieces: bytes) -> Generator[socket.socket]:
    """Connect to the app and send these bytes, without an HTTP library."""
    with socket.create_connection(("127.0.0.1", app.port), timeout=60) as connection:
        for piece in pieces:
            connection.sendall(piece)
        yield connection
