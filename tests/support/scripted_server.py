"""A small Chat Completions server on loopback that plays scripts (`script_language.py`) and keeps a journal.

It speaks HTTP on a bare asyncio protocol, because tests of stopping and of endings need what frameworks hide: the
moment a silent client disconnects, a connection reset, an end without a last chunk. Absolute deadlines pace the tokens.
Tokens are sent on a grid of 5 ms, so 200 tokens a second cost about one short wake-up each.

    python -m tests.support.scripted_server --port 9000            prints its base URL when it listens
    with running() as server: server.base_url, server.journal()
"""

import argparse
import asyncio
import json
import math
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, assert_never
from urllib.parse import parse_qsl

from tests.support.script_language import (
    Action,
    Break,
    Deltas,
    Finish,
    Hold,
    Hush,
    Json,
    Raw,
    Refuse,
    Wait,
    error_body,
    plan,
)

TICK = 0.005
MARK_EVERY = 50


def _moment() -> Json:
    """Return the time on both clocks: epoch ms for pages, monotonic seconds for other processes of this machine."""
    return {"epoch_ms": time.time() * 1000, "mono": time.monotonic()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The server's configuration. `rate`, in tokens a second, applies to scripts that set none.

    `owned_by` in the list of models is how servers of the same API tell who they are. `scripts` are played when a
    message has their key as its text, so that the message can be one of a person. `embed` makes the vectors for the
    route /v1/embeddings, which is missing without it. `spoil` changes the bytes of each stream, head included.
    `goes_on`: an answer goes on without its client. `speak` makes the sound of a text for the route /v1/audio/speech,
    which is missing without it; None holds the answer back, and an empty sound is an error.
    """

    models: Sequence[str] = ("Qwen/Qwen3-8B",)
    max_model_len: int = 32768
    api_key: str | None = None
    rate: float = 100.0
    owned_by: str = "vllm"
    scripts: Mapping[str, str] = field(default_factory=dict[str, str])
    embed: Callable[[Sequence[str]], Sequence[Sequence[float]]] | None = None
    spoil: Callable[[bytes], bytes] = bytes
    goes_on: bool = False
    speak: Callable[[str], bytes | None] | None = None


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One chat request and its outcome: a line of the journal.

    `ended` is None while it runs, else a finish reason, the name of a broken ending, `status 429`, or `client_closed`.
    `closed` is the time when the client disconnected before the end.
    """

    id: int
    body: Json
    authorization: str | None
    at: Json = field(default_factory=_moment)
    sent: int = 0
    reasoning: int = 0
    first: Json | None = None
    last: Json | None = None
    marks: list[Json] = field(default_factory=list[Json])
    closed: Json | None = None
    ended: str | None = None

    def count(self, deltas: Sequence[Json]) -> None:
        """Record that these deltas were sent now."""
        if not deltas:
            return
        now, before = _moment(), self.sent
        self.sent += len(deltas)
        self.reasoning += sum(1 for delta in deltas if "reasoning" in delta)
        self.first, self.last = self.first or now, now
        for n in range(before // MARK_EVERY + 1, self.sent // MARK_EVERY + 1):
            self.marks.append({"n": n * MARK_EVERY, **now})

    def shown(self, *, body: bool = True) -> Json:
        """Return the journal's JSON. `finished` says that the server reached its planned end."""
        finished = self.ended is not None and self.ended != "client_closed"
        names = ("id", "authorization", "at", "sent", "first", "last", "marks", "closed", "ended")
        return {name: getattr(self, name) for name in names} | {"finished": finished, "body": self.body if body else {}}

    def usage(self) -> Json:
        """Return the usage: prompt tokens estimated at four characters each, completion tokens as the deltas sent."""
        prompt = len(json.dumps(self.body.get("messages", []))) // 4
        total = {"prompt_tokens": prompt, "completion_tokens": self.sent, "total_tokens": prompt + self.sent}
        return total | {"completion_tokens_details": {"reasoning_tokens": self.reasoning}}


@dataclass(slots=True)
class Server:
    """The journal and the answers of one server. Its connections share it."""

    config: Config
    exchanges: list[Exchange] = field(default_factory=list[Exchange])
    attempts: Counter[str] = field(default_factory=Counter[str])
    embedded: list[list[str]] = field(default_factory=list[list[str]])
    spoken: list[Json] = field(default_factory=list[Json])
    unheard: int = 0
    """The requests for sound whose client has gone."""
    connections: set["Connection"] = field(default_factory=set["Connection"])
    released: set[str] = field(default_factory=set[str])
    ids: int = 0

    async def hold(self, name: str) -> None:
        """Wait until the test has released this name, perhaps long ago."""
        while name not in self.released:  # noqa: ASYNC110 - the test is another thread
            await asyncio.sleep(TICK)

    def open(self, body: Json, authorization: str | None) -> Exchange:
        """Begin a journal line."""
        self.ids += 1
        exchange = Exchange(id=self.ids, body=body, authorization=authorization)
        self.exchanges.append(exchange)
        return exchange

    def plan(self, body: Json, authorization: str | None) -> list[Action]:
        """Plan the answer to a request: refuse a wrong key or model, else follow the script."""
        if self.config.api_key and authorization != f"Bearer {self.config.api_key}":
            return [Refuse(401, {"error": "Unauthorized"})]  # vLLM's own body: a string, not an object
        if (model := body.get("model")) not in self.config.models:
            return [Refuse(404, error_body(f"The model `{model}` does not exist.", "NotFoundError", 404, "model"))]
        key = json.dumps(body.get("messages"))
        self.attempts[key] += 1
        try:
            return plan(body, attempt=self.attempts[key], rate=self.config.rate, scripts=self.config.scripts)
        except (ValueError, TypeError, KeyError) as error:
            return [Refuse(400, error_body(f"That script does not work: {error}", "BadRequestError", 400))]

    def journal(self, *, after: int = 0, bodies: bool = True) -> list[Json]:
        """Return the journal's lines with an id above `after`."""
        return [exchange.shown(body=bodies) for exchange in list(self.exchanges) if exchange.id > after]

    def models(self) -> Json:
        """Return `/v1/models` in vLLM's shape."""
        data = [
            {"id": name, "object": "model", "created": 0, "owned_by": self.config.owned_by, "root": name}
            | {"parent": None, "max_model_len": self.config.max_model_len, "permission": []}
            for name in self.config.models
        ]
        return {"object": "list", "data": data}


class Connection(asyncio.Protocol):
    """One client connection: parses a request, plays the answer in a task, then waits for the next request."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.buffer = bytearray()
        self.task: asyncio.Task[None] | None = None
        self.exchange: Exchange | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.server.connections.add(self)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self._advance()

    def eof_received(self) -> bool:
        self._gone()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.connections.discard(self)
        self._gone()

    def _gone(self) -> None:
        """Handle a disconnect. Between two requests it is normal. During one, record the time in the journal."""
        if self.server.config.goes_on:
            return
        if self.exchange and self.exchange.ended is None:
            self.exchange.closed, self.exchange.ended = _moment(), "client_closed"
        if self.task:
            self.task.cancel()

    def _advance(self) -> None:
        if self.task or (request := _take_request(self.buffer)) is None:
            return
        self.task = asyncio.get_running_loop().create_task(self._answer(*request))
        self.task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self.task = self.exchange = None
        if task.cancelled():
            self.transport.abort()
        elif error := task.exception():
            task.get_loop().call_exception_handler({"message": "answering failed", "exception": error})
            self.transport.abort()
        else:
            self._advance()

    async def _answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        path, _, query = target.partition("?")
        options = dict(parse_qsl(query))
        match method, path:
            case "POST", "/v1/chat/completions":
                await self._chat(json.loads(body), headers.get("authorization"))
            case "POST", "/v1/embeddings" if self.server.config.embed is not None:
                self._embed(json.loads(body), headers.get("authorization"))
            case "POST", "/v1/audio/speech" if self.server.config.speak is not None:
                await self._speak(json.loads(body), headers.get("authorization"))
            case "GET", "/v1/models":
                refused = self.server.config.api_key and (
                    headers.get("authorization") != f"Bearer {self.server.config.api_key}"
                )
                self._reply(401, {"error": "Unauthorized"}) if refused else self._reply(200, self.server.models())
            case "GET", "/journal":
                after, bodies = int(options.get("after", 0)), options.get("bodies") != "0"
                self._reply(200, {"requests": self.server.journal(after=after, bodies=bodies)})
            case "DELETE", "/journal":
                self.server.exchanges.clear()
                self._reply(200, {})
            case "GET", "/metrics":
                running = sum(one.ended is None for one in self.server.exchanges)
                text = f'vllm:num_requests_running{{model_name="any"}} {running:.1f}\n'.encode()
                self.transport.write(_head(200, {"content-length": str(len(text))}) + text)
            case "GET", "/health" | "/version":
                self._reply(200, {"version": "0.32.0"})
            case _:
                self._reply(404, {"detail": "Not Found"})

    def _embed(self, body: Json, authorization: str | None) -> None:
        if self.server.config.api_key and authorization != f"Bearer {self.server.config.api_key}":
            return self._reply(401, {"error": "Unauthorized"})
        assert self.server.config.embed is not None
        vectors = self.server.config.embed(body["input"])
        self.server.embedded.append(list(body["input"]))
        data = [{"object": "embedding", "index": at, "embedding": list(one)} for at, one in enumerate(vectors)]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        self._reply(200, {"object": "list", "model": body["model"], "data": data, "usage": usage})

    async def _speak(self, body: Json, authorization: str | None) -> None:
        assert self.server.config.speak is not None
        self.server.spoken.append(body | {"authorization": authorization})
        if (sound := self.server.config.speak(body["input"])) is None:
            try:
                await _silence(math.inf)
            finally:
                self.server.unheard += 1
        elif sound:
            self.transport.write(_head(200, {"content-type": "audio/wav", "content-length": str(len(sound))}) + sound)
        else:
            self._reply(500, error_body("No voice.", "InternalServerError", 500))

    async def _chat(self, body: Json, authorization: str | None) -> None:
        self.exchange = exchange = self.server.open(body, authorization)
        actions = self.server.plan(body, authorization)
        if isinstance(first := actions[0], Refuse):
            exchange.ended = f"status {first.status}"
            self._reply(first.status, first.body, first.headers)
        elif isinstance(first, Hush):
            await _silence(math.inf)
        elif body.get("stream"):
            await _Streamed(self.transport, exchange, self.server).play(actions)
        else:
            await self._whole(exchange, actions)

    async def _whole(self, exchange: Exchange, actions: Sequence[Action]) -> None:
        """Play the same plan for a client that does not stream: wait as long, and send one message."""
        message: Json = {"role": "assistant", "content": None}
        reason: str | None = None
        for action in actions:
            match action:
                case Deltas(items=items, rate=rate):
                    await asyncio.sleep((len(items) - 1) / rate if rate else 0)
                    for delta in items:
                        _merge(message, delta)
                    exchange.count(items)
                case Wait(seconds=seconds):
                    await _silence(seconds)
                case Hold(name=name):
                    await self.server.hold(name)
                case Finish(reason=reason):
                    break
                case Break(how=how):
                    exchange.ended = how
                    _reset(self.transport)
                    return
                case Raw() | Hush() | Refuse():
                    continue
                case _:
                    assert_never(action)
        exchange.ended = reason or "none"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        self._reply(200, _envelope(exchange, "chat.completion") | {"choices": [choice], "usage": exchange.usage()})

    def _reply(self, status: int, value: Json, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        lines = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
        self.transport.write(_head(status, lines) + body)


class _Streamed:
    """Plays a plan as server-sent events in HTTP chunks."""

    def __init__(self, transport: asyncio.Transport, exchange: Exchange, server: Server) -> None:
        self.transport = transport
        self.exchange = exchange
        self.server = server
        self.opened = False
        envelope = json.dumps(_envelope(exchange, "chat.completion.chunk"))[:-1]
        # Build a chunk from strings around the delta: encoding the envelope for each token would double the cost.
        self.before = f'data: {envelope}, "choices": [{{"index": 0, "delta": '
        self.after = ', "finish_reason": null}]}\n\n'

    async def play(self, actions: Sequence[Action]) -> None:
        head = _head(200, {"content-type": "text/event-stream; charset=utf-8", "transfer-encoding": "chunked"})
        self.transport.write(self.server.config.spoil(head))
        for action in actions:
            match action:
                case Deltas(items=items, rate=rate):
                    await self._paced(items, rate)
                case Wait(seconds=seconds):
                    await _silence(seconds)
                case Hold(name=name):
                    await self.server.hold(name)
                case Raw(line=line):
                    self._write(line + "\n\n")
                case Finish(reason=reason):
                    return self._finish(reason)
                case Break(how=how):
                    return await self._break(how)
                case Hush():
                    await _silence(math.inf)
                case Refuse(body=refusal):  # it is too late for a status, so the stream reports the error
                    return await self._break("error-event", refusal)
                case _:
                    assert_never(action)

    async def _paced(self, items: Sequence[Json], rate: float) -> None:
        loop = asyncio.get_running_loop()
        start, sent = loop.time(), 0
        while sent < len(items):
            due = min(len(items), int((loop.time() - start) * rate + 1e-6) + 1) if rate else min(len(items), sent + 20)
            self._deltas(items[sent:due])
            sent = due
            if sent < len(items):
                await asyncio.sleep(_next_tick(start, sent / rate, loop.time()) if rate else 0)

    def _deltas(self, items: Sequence[Json]) -> None:
        if not items:
            return
        head = "" if self.opened else self.before + '{"role": "assistant", "content": ""}' + self.after
        self.opened = True
        self._write(head + "".join(f"{self.before}{json.dumps(item)}{self.after}" for item in items))
        self.exchange.count(items)

    def _finish(self, reason: str | None) -> None:
        text = ""
        if reason is not None:
            text = self.before + "{}" + self.after.replace("null", json.dumps(reason))
        if (self.exchange.body.get("stream_options") or {}).get("include_usage"):
            usage = {"choices": [], "usage": self.exchange.usage()}
            text += f"data: {json.dumps(_envelope(self.exchange, 'chat.completion.chunk') | usage)}\n\n"
        self._write(text + "data: [DONE]\n\n")
        self._end(reason or "none")

    async def _break(self, how: str, error: Json | None = None) -> None:
        if how == "reset":
            await asyncio.sleep(0.02)  # let the client read what was sent, because a reset can overtake it
            self.exchange.ended = how
            return _reset(self.transport)
        if how == "error-event":
            body = error or error_body("EngineCore encountered an issue.", "InternalServerError", 500)
            self._write(f"data: {json.dumps(body)}\n\ndata: [DONE]\n\n")
        self._end(how)

    def _end(self, how: str) -> None:
        self.exchange.ended = how
        self.transport.write(b"0\r\n\r\n")

    def _write(self, text: str) -> None:
        if data := self.server.config.spoil(text.encode()):
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))


def _next_tick(start: float, deadline: float, now: float) -> float:
    """Return the seconds until the first 5 ms grid point after `now` and `deadline`, which counts from `start`."""
    ticks = math.ceil(max(deadline, now - start) / TICK - 1e-6)
    return start + ticks * TICK - now


async def _silence(seconds: float) -> None:
    if math.isinf(seconds):
        await asyncio.get_running_loop().create_future()
    await asyncio.sleep(seconds)


def _take_request(buffer: bytearray) -> tuple[str, str, dict[str, str], bytes] | None:
    """Remove one whole request from the buffer: method, target, headers, body. Return None if it is incomplete."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    first, *rest = buffer[:end].decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    stop = end + 4 + int(headers.get("content-length", 0))
    if len(buffer) < stop:
        return None
    body = bytes(buffer[end + 4 : stop])
    del buffer[:stop]
    method, target, _ = first.split(" ", 2)
    return method, target, headers, body


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def _envelope(exchange: Exchange, kind: str) -> Json:
    created = int(exchange.at["epoch_ms"] / 1000)
    return {"id": f"chatcmpl-{exchange.id}", "object": kind, "created": created, "model": exchange.body.get("model")}


def _reset(transport: asyncio.Transport) -> None:
    """Close with a TCP reset: lingering for zero seconds drops the queue and sends RST instead of FIN."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def _merge(message: Json, delta: Json) -> None:
    for name, value in delta.items():
        if name == "tool_calls":
            calls: list[Json] = message.setdefault("tool_calls", [])
            for piece in value:
                if "id" in piece:
                    calls.append({"id": piece["id"], "type": "function", "function": dict(piece["function"])})
                else:
                    calls[piece.get("index", -1)]["function"]["arguments"] += piece["function"]["arguments"]
        elif isinstance(value, str):
            message[name] = (message.get(name) or "") + value


async def listen(server: Server, port: int = 0) -> tuple[asyncio.Server, int]:
    """Listen on loopback in the running loop. Return the asyncio server and its port."""
    listener = await asyncio.get_running_loop().create_server(lambda: Connection(server), "127.0.0.1", port)
    return listener, listener.sockets[0].getsockname()[1]


@dataclass(frozen=True, slots=True)
class Running:
    """A server that runs in a thread of this process."""

    url: str
    server: Server

    @property
    def base_url(self) -> str:
        """The value for `VLLM_BASE_URL`."""
        return f"{self.url}/v1"

    def journal(self, *, after: int = 0) -> list[Json]:
        """Return the journal, oldest line first."""
        return self.server.journal(after=after)

    def release(self, name: str) -> None:
        """Let every answer go on that waits for this name, now or later."""
        self.server.released.add(name)

    def wait_for(self, holds: Callable[[list[Json]], Any], seconds: float = 60.0) -> list[Json]:
        """Return the journal once `holds(journal)` is true. Raises TimeoutError with the journal's endings."""
        until = time.monotonic() + seconds
        while not holds(journal := self.journal()):
            if time.monotonic() > until:
                raise TimeoutError(f"journal: {[(line['id'], line['sent'], line['ended']) for line in journal]}")
            time.sleep(0.005)
        return journal


@contextmanager
def running(config: Config | None = None, *, port: int = 0) -> Iterator[Running]:
    """Run a server in a separate thread and event loop until the block ends."""
    server = Server(config or Config())
    ready: list[int] = []
    started = threading.Event()
    loop = asyncio.new_event_loop()

    async def start() -> asyncio.Server:
        listener, bound = await listen(server, port)
        ready.append(bound)
        return listener

    def work() -> None:
        try:
            listener = loop.run_until_complete(start())
        finally:
            started.set()
        loop.run_forever()
        while server.connections or asyncio.all_tasks(loop):
            for connection in list(server.connections):
                connection.transport.abort()
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
        listener.close()  # only now, because it would leave a connection open that was just accepted
        loop.close()

    thread = threading.Thread(target=work, name="scripted-server", daemon=True)
    thread.start()
    started.wait()
    if not ready:
        raise OSError(f"the scripted server could not listen on port {port}")
    try:
        yield Running(f"http://127.0.0.1:{ready[0]}", server)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


async def _serve(config: Config, port: int) -> None:
    listener, bound = await listen(Server(config), port)
    print(f"http://127.0.0.1:{bound}/v1", flush=True)
    await listener.serve_forever()


def main() -> None:
    """Serve until interrupted."""
    default = Config()
    parser = argparse.ArgumentParser(description="A scripted model server for tests, on 127.0.0.1.")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--model", action="append", help="an id to serve; may be given again")
    parser.add_argument("--max-model-len", type=int, default=default.max_model_len)
    parser.add_argument("--api-key")
    parser.add_argument("--rate", type=float, default=default.rate, help="tokens a second of scripts that name none")
    given = parser.parse_args()
    config = Config(
        models=tuple(given.model or default.models),
        max_model_len=given.max_model_len,
        api_key=given.api_key,
        rate=given.rate,
    )
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(config, given.port))


if __name__ == "__main__":
    main()
