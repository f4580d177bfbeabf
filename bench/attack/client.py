"""Tools for attacks: a visitor over raw HTTP, a bystander that sends messages, and a meter of the server's memory."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
import psutil

from bench.process import ROOT

API = "/gradio_api/"
MB = 1024 * 1024


@dataclass(frozen=True)
class Reply:
    """The end of one event: its success, its return value, and the sentence of a refusal."""

    success: bool
    output: dict[str, Any]

    @property
    def error(self) -> str:
        """The sentence of a refusal, or "" if there was none."""
        return "" if self.success else str(self.output.get("error"))

    @property
    def value(self) -> Any:
        """The first return value of the event."""
        return (self.output.get("data") or [None])[0]


class Client:
    """One visitor with one session. A `guest` sends no cookie. `source` is the address it connects from."""

    def __init__(
        self, url: str, *, guest: bool = False, like: "Client | None" = None, source: str | None = None, **headers: str
    ) -> None:
        transport = httpx.HTTPTransport(local_address=source, verify=False)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        self.http = httpx.Client(base_url=url, timeout=120, trust_env=False, transport=transport, headers=sent)
        self.session = uuid4().hex[:11]
        self.config: dict[str, Any] = self.http.get("/config").raise_for_status().json()
        self.names = {one["props"].get("elem_id"): one["id"] for one in self.config["components"]}
        if guest:
            self.http.cookies.clear()
        if like is not None:
            self.http.cookies = httpx.Cookies(like.http.cookies)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def upload(self, name: str, data: bytes) -> str:
        """Upload a file and return its path on the server."""
        return self.http.post(f"{API}upload", files={"files": (name, data)}).raise_for_status().json()[0]

    def begin(self, text: str, *paths: str, model: str = "", **options: Any) -> httpx.Response:
        """Send a message through the programming interface. Return without waiting for the answer."""
        event = next(one for one in self.config["dependencies"] if one["api_name"] == "chat")
        return self._join(event["id"], [message(text, *paths), model, options, None])

    def send(self, text: str, chat: str = "", **more: Any) -> httpx.Response:
        """Send a message as the page does, to this chat or a new one. `read` waits for the end of its answer."""
        path = f"/conversations/{chat}/messages" if chat else "/conversations"
        return self.http.post(path, json={"text": text, **more})

    def read(self, sent: httpx.Response) -> str:
        """Return the events of the answer to a message, to its end."""
        return self.http.get(f"/runs/{sent.json()['run']}/events").text

    def wait(self, seconds: float = 60.0) -> list[Reply]:
        """Listen until all events of the session are done or the time is over. Return their ends."""
        replies: list[Reply] = []
        until = time.monotonic() + seconds
        query = {"session_hash": self.session}
        with suppress(httpx.TransportError), self.http.stream("GET", f"{API}queue/data", params=query) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    said = json.loads(line.removeprefix("data: "))
                    if said["msg"] == "process_completed":
                        replies.append(Reply(said["success"], said["output"]))
                if time.monotonic() > until:
                    break
        return replies

    def chat(self, text: str, *paths: str, seconds: float = 60.0, **options: Any) -> Reply:
        """Send a message through the programming interface and wait for the answer."""
        joined = self.begin(text, *paths, **options)
        if joined.status_code != 200:
            return Reply(False, {"error": f"status {joined.status_code}"})
        replies = self.wait(seconds)
        return replies[-1] if replies else Reply(False, {"error": "no answer"})

    def _join(self, event: int, data: list[Any]) -> httpx.Response:
        body = {"data": data, "fn_index": event, "session_hash": self.session}
        return self.http.post(f"{API}queue/join", json=body)


def message(text: str, *paths: str) -> dict[str, Any]:
    """Return a value of the composer."""
    return {"text": text, "files": [{"path": path, "meta": {"_type": "gradio.FileData"}} for path in paths]}


@dataclass
class Bystander:
    """Another visitor: the seconds of its answers and of its looks at the page, the list and a chat, and its failures.

    `longest` are the longest seconds of each kind of look.
    """

    seconds: list[float] = field(default_factory=list[float])
    looks: list[float] = field(default_factory=list[float])
    longest: dict[str, float] = field(default_factory=dict[str, float])
    failures: list[str] = field(default_factory=list[str])

    @property
    def slowest(self) -> float:
        """The longest time of a request."""
        return max([*self.seconds, *self.looks], default=0.0)

    def __str__(self) -> str:
        failed = f", refused {len(self.failures)} times: {self.failures[0]}" if self.failures else ""
        each = {"an answer": max(self.seconds, default=0.0), **self.longest}
        waits = ", ".join(f"{seconds:.2f} s for {name}" for name, seconds in each.items())
        return f"{len(self.seconds)} answers, the longest waits {waits}{failed}"


@contextmanager
def bystander(url: str, *, pause: float = 1.0) -> Iterator[Bystander]:
    """Run a bystander during the block, in a process of its own, which the attack cannot slow. Fill it at the end."""
    command = [sys.executable, "-m", "bench.attack.neighbour", url, str(pause)]
    seen = Bystander()
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdin
        try:
            process.stdout.readline()  # the page is open
            yield seen
        finally:
            process.stdin.close()
            for name, value in json.loads(process.stdout.read() or "{}").items():
                setattr(seen, name, value)


@dataclass
class Memory:
    """Resident memory of a process in MB: before, at most, and after."""

    before: float = 0.0
    peak: float = 0.0
    after: float = 0.0

    @property
    def grown(self) -> float:
        """The growth at its peak."""
        return self.peak - self.before

    @property
    def kept(self) -> float:
        """The growth that remains afterwards."""
        return self.after - self.before

    def __str__(self) -> str:
        return f"{self.before:.0f} MB before, {self.peak:.0f} at most, {self.after:.0f} after"


def wait_until_settled(pid: int, seconds: float = 4.0) -> None:
    """Wait until the memory of a process stays as it is: it imports libraries after it has started."""
    process, before, since = psutil.Process(pid), 0.0, time.monotonic()
    while time.monotonic() - since < seconds:
        time.sleep(0.2)
        if abs((now := process.memory_info().rss / MB) - before) > 2:
            before, since = now, time.monotonic()


@contextmanager
def memory(pid: int, *, settle: float = 2.0) -> Iterator[Memory]:
    """Measure during the block, and once more `settle` seconds later."""
    process, over = psutil.Process(pid), threading.Event()
    seen = Memory(before=process.memory_info().rss / MB)

    def work() -> None:
        while not over.wait(0.02):
            seen.peak = max(seen.peak, process.memory_info().rss / MB)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield seen
        time.sleep(settle)
    finally:
        over.set()
        thread.join()
        seen.after = process.memory_info().rss / MB
        seen.peak = max(seen.peak, seen.before, seen.after)
