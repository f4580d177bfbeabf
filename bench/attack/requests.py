"""Attacks with requests that are made to be slow to read. Each returns how often each status was answered."""

import gzip
import json
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import cycle
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx

from agent.web.gradio_compat.application import STATIC_FILES
from bench.attack.client import API, MB, Client
from bench.attack.heavy import long_chat

SECONDS = 20.0
TIMES = 100
JOIN = f"{API}queue/join"
BODIES = {
    "4 MB of empty lists": b"[" + b"[]," * (4 * MB // 3),
    "0.9 MB of empty lists": b"[" + b"[]," * (MB * 3 // 10),
    "0.9 MB of long numbers": b'{"data":[' + (b"1" * 4000 + b",") * 220 + b"1]}",
    "0.9 MB of escapes": b'{"data":["' + b"\\u0000" * 150_000 + b'"]}',
    "0.9 MB of nested objects": b'{"a":' * 180_000,
}
"""Bodies of events. Each was parsed on the event loop, and refused without being counted."""


def events(url: str, body: bytes) -> dict[str, int]:
    """Send this body as an event again and again."""
    return _repeat(url, lambda client: client.http.post(JOIN, content=body))


def newcomers(url: str, path: str, body: bytes) -> dict[str, int]:
    """Send a body again and again, each time with a new cookie from one address behind a proxy."""

    def ask(client: Client) -> httpx.Response:
        client.http.cookies.clear()
        client.http.get("/config")
        return client.http.post(path, content=body)

    return _repeat(url, ask, address="192.0.2.7")


def long_names(url: str, names: Sequence[str]) -> dict[str, int]:
    """Ask for files with names that no file can have."""
    found = Counter[str]()
    with Client(url) as client:
        for folder in ("/static/", "/assets/", "/svelte/", "/media/", f"{API}file="):
            found.update(str(client.http.get(folder + name).status_code) for name in names)
    return dict(found)


def long_heads(url: str, headers: Mapping[str, str], paths: Sequence[str] = ("/", "/conversations")) -> dict[str, int]:
    """Ask again and again with these headers, besides the cookie."""
    at = cycle(paths)

    def ask(client: Client) -> httpx.Response:
        cookie = "; ".join(f"{name}={value}" for name, value in client.http.cookies.items())
        return client.http.get(next(at), headers={**headers, "cookie": cookie + headers.get("cookie", "")})

    return _repeat(url, ask)


PROMPT = "\N{GRINNING FACE}" * 20_000
"""The longest system prompt."""
SETTINGS: Sequence[Any] = (
    {"system_message": PROMPT},
    {"system_message": ["a"] * 9_000},
    {"model": "x" * 100_000},
    {"model": {"a": [[]]}, "effort": 1e300},
    {f"x{number}": number for number in range(9_000)},
    {"temperature": float("inf"), "top_p": -1},
    {"tools": [PROMPT]},
    [],
)
"""The settings that a page can have, and odd ones."""


def _counted(statuses: Callable[[int], int], count: int) -> dict[str, int]:
    """Call it so many times, 16 at once. Return the number of each status."""
    with ThreadPoolExecutor(16) as pool:
        return dict(Counter(str(one) for one in pool.map(statuses, range(count))))


def settings_at_once(url: str, visitors: int = 8, count: int = 400) -> dict[str, int]:
    """Change the settings of some visitors, all at once. Return the number of each status."""
    bodies = [json.dumps(one, ensure_ascii=False).encode() for one in SETTINGS]
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(url)) for _ in range(visitors)]
        return _counted(
            lambda n: clients[n % visitors].http.patch("/settings", content=bodies[n % len(bodies)]).status_code, count
        )


def pages_with_prompts(url: str, count: int = 400) -> dict[str, int]:
    """Open the page with a long text and model in its address, and read how to use it."""
    texts = ("x" * 30_000, "%F0%9F%98%80" * 2_500, "a&prompt=" * 3_000, "%00" * 10_000, "<script>" * 3_000)
    with Client(url) as client:

        def ask(number: int) -> int:
            text = texts[number % len(texts)]
            path = "/llms.txt" if number % 5 == 0 else f"/?prompt={text}&model={text[:1000]}"
            return client.http.get(path).status_code

        return _counted(ask, count)


def steers_at_once(url: str, count: int = 120, characters: int = 190_000) -> dict[str, int]:
    """Send a running answer long messages, all at once, some with the same id, and some of a stranger."""
    with Client(url) as client, Client(url) as stranger:
        chat, same = client.send("!tokens 200 @20").json()["conversation"], uuid4().hex

        def steer(number: int) -> int:
            who = stranger if number % 4 == 0 else client
            body = {"text": "word " * (characters // 5), "id": same if number % 4 == 1 else uuid4().hex}
            with suppress(httpx.HTTPError):
                return who.http.post(f"/conversations/{chat}/steer", json=body, timeout=60).status_code
            return 0

        return _counted(steer, count)


def answers_to_questions(url: str, count: int = 200) -> dict[str, int]:
    """Answer questions that nobody has asked, with long texts."""
    with Client(url) as client:
        sent = client.send("!text Hi.")
        client.read(sent)
        path = f"/conversations/{sent.json()['conversation']}/messages"

        def answer(number: int) -> int:
            question = {"run": "x" * 100_000, "call": "y" * 100_000} if number % 2 else {"run": uuid4().hex, "call": ""}
            body = {"text": "word " * 30_000, "question": question}
            return client.http.post(path, json=body).status_code

        return _counted(answer, count)


def slow_connections(url: str, each: int = 6, seconds: float = SECONDS) -> dict[str, int]:
    """Read large answers, and send large bodies, at a byte a second. Return the statuses of another connection."""
    with Client(url) as client, ExitStack() as stack:
        chat = long_chat(client, 2.0)
        one = f"/conversations/{chat}"
        link = client.http.post(f"{one}/links", json={"days": 1}).json()["path"]
        read = ["/", "/config", "/conversations", "/own-data", link, f"{one}?format=blocks", f"/export/{chat}"]
        written = ["/conversations", f"{one}/steer", f"{one}/messages", "/import", f"{API}upload", f"{API}queue/join"]
        cookie = "; ".join(f"{name}={value}" for name, value in client.http.cookies.items())
        place = urlsplit(url)
        head = f"HTTP/1.1\r\nhost: {place.netloc}\r\ncookie: {cookie}\r\n"
        opened = list[tuple[socket.socket, bool]]()
        for path in [*read, *written] * each:
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.connect((place.hostname or "127.0.0.1", place.port or 80))
            method = f"GET {path} {head}" if path in read else f"POST {path} {head}content-length: {MB}\r\n"
            connection.sendall(f"{method}\r\n".encode())
            connection.setblocking(False)
            opened.append((connection, path in written))
        until = monotonic() + seconds
        while monotonic() < until:
            for connection, has_body in opened:
                with suppress(OSError):
                    connection.send(b"[") if has_body else connection.recv(1)
            sleep(1)
        stack.close()
        return {path.replace(chat, "CHAT"): client.http.get(path).status_code for path in read}


def _raw(url: str, request: bytes, seconds: float = 10.0) -> str:
    """Send these bytes over a connection of their own. Return the status."""
    place = urlsplit(url)
    with suppress(OSError), socket.create_connection((place.hostname or "", place.port or 80), timeout=seconds) as one:
        with suppress(OSError):
            one.sendall(request)
        return one.recv(12)[9:].decode() or "closed"
    return "closed"


def small_chunks(url: str, connections: int = 16, times: int = 10) -> dict[str, int]:
    """Send bodies in chunks of a byte over several connections at once."""
    head = f"POST {JOIN} HTTP/1.1\r\nhost: {urlsplit(url).netloc}\r\ntransfer-encoding: chunked\r\n\r\n"
    request = head.encode() + b"1\r\nx\r\n" * 300_000
    with ThreadPoolExecutor(connections) as pool:
        return dict(Counter(pool.map(lambda _: _raw(url, request), range(connections * times))))


def invented_names(url: str, count: int = 600) -> dict[str, int]:
    """Ask for the page and its configuration under names that nobody has asked for."""
    port = urlsplit(url).port
    with Client(url) as client:

        def ask(number: int) -> int:
            method, path = ("GET", "HEAD", "GET")[number % 3], ("/", "/", "/config")[number % 3]
            return client.http.request(method, path, headers={"host": f"name{number}.localhost:{port}"}).status_code

        return _counted(ask, count)


def files_of_the_program(url: str) -> dict[str, int]:
    """Ask for each file of the page in each encoding, most of which no page loads."""
    names = [one.name for one in STATIC_FILES.iterdir()]
    with Client(url) as client:

        def ask(number: int) -> int:
            encoding = ("br", "gzip", "identity")[number // len(names)]
            path = f"/assets/{names[number % len(names)]}"
            return client.http.get(path, headers={"accept-encoding": encoding}).status_code

        return _counted(ask, 3 * len(names))


def unread_events(url: str, count: int = 300, seconds: float = SECONDS) -> dict[str, int]:
    """Ask for the events of a long answer many times, and read none. Return the status of one more reader."""
    with Client(url) as client, ExitStack() as stack:
        sent = client.send("!tokens 3000 @400")
        path, place = f"/runs/{sent.json()['run']}/events", urlsplit(url)
        cookie = "; ".join(f"{name}={value}" for name, value in client.http.cookies.items())
        for _ in range(count):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.connect((place.hostname or "127.0.0.1", place.port or 80))
            connection.sendall(f"GET {path} HTTP/1.1\r\nhost: {place.netloc}\r\ncookie: {cookie}\r\n\r\n".encode())
        sleep(seconds)
        return {"one more reader": client.http.get(path).status_code}


MARKDOWN = (
    "[" * 65_000, "![a](" * 13_000, "*a **b " * 9_000, "`" * 65_000, "> " * 32_000, "- " * 32_000, "|" * 65_000,
    "<a " * 21_000, "$" * 65_000, "[a]: b\n" * 9_000, "a[^1]" * 13_000, "&" * 65_000, "http://a." * 7_000,
    "1. \n" * 16_000, "|a|b|\n|-|-|\n" * 5_000, "```\n" * 16_000, "**" + "\u03b1" * 30_000, "\\(" * 21_000,
    "\ufdfa" * 21_000,
)  # fmt: skip
"""Texts in Markdown of the longest kind that a route shows, of each sign that begins something."""


def markdown(url: str) -> dict[str, int]:
    """Ask for texts in Markdown, some at once."""
    with Client(url) as client:
        return _counted(
            lambda n: client.http.post("/markdown", json={"text": MARKDOWN[n % len(MARKDOWN)]}).status_code, 57
        )


def odd_requests(url: str, times: int = 20) -> dict[str, int]:
    """Send requests with long or odd heads and bodies, each many times and over a connection of its own."""
    parts = b'--b\r\ncontent-disposition: form-data; name="files"; filename="a"\r\n\r\nx\r\n' * 10_000
    packed = gzip.compress(bytes(100 * MB))
    chunked = b"transfer-encoding: chunked\r\n\r\n"
    upgrade = b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    form = b"content-type: multipart/form-data; boundary=b\r\ncontent-length: %d\r\n\r\n" % len(parts)
    lines: dict[str, tuple[str, bytes]] = {
        "prompt": ("GET /?prompt=" + "x" * MB, b"\r\n"),
        "fields": ("GET /?" + "a&" * 8_000, b"\r\n"),
        "headers": ("GET /", b"a:b\r\n" * 4_000 + b"\r\n"),
        "cookies": ("GET /", b"cookie: " + b"a=b;" * 4_000 + b"\r\n\r\n"),
        "languages": ("GET /", b"accept-language: " + b"de;q=0.1," * 1_700 + b"\r\n\r\n"),
        "ranges": ("GET /favicon.ico", b"range: bytes=" + b"0-1," * 3_000 + b"0-1\r\n\r\n"),
        "conditions": ("GET /static/img/logo.svg", b"if-none-match: " + b'W/"a",' * 2_000 + b"\r\n\r\n"),
        "upgrade": ("GET /", upgrade + b"\r\n" + bytes(MB)),
        "parts": (f"POST {API}upload", form + parts),
        "packed": ("POST /import", b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed) + packed),
        "extension": (f"POST {JOIN}", chunked + b"1;" + b"x" * MB),
        "trailer": (f"POST {JOIN}", chunked + b"0\r\n" + b"a:b\r\n" * 100_000),
        "small chunks": (f"POST {JOIN}", chunked + b"1\r\nx\r\n" * 100_000),
    }
    host = f" HTTP/1.1\r\nhost: {urlsplit(url).netloc}\r\n"
    requests = {name: (line + host).encode() + rest for name, (line, rest) in lines.items()}
    requests["pipeline"] = f"GET /healthz{host}\r\n".encode() * 5_000
    with ThreadPoolExecutor(8) as pool:
        asked = [(name, pool.submit(_raw, url, one)) for name, one in requests.items() for _ in range(times)]
        return dict(Counter(f"{name} {one.result()}" for name, one in asked))


def _repeat(url: str, ask: Callable[[Client], httpx.Response], address: str = "") -> dict[str, int]:
    found, until = Counter[str](), monotonic() + SECONDS
    with Client(url, x_forwarded_for=address) as client:
        for _ in range(TIMES):
            if monotonic() > until:
                break
            try:
                found[str(ask(client).status_code)] += 1
            except httpx.TransportError as error:  # refused before the whole body was sent
                found[type(error).__name__] += 1
    return dict(found)


ATTACKS: dict[str, Callable[[str], object]] = {
    **{f"an event of {name}": lambda url, body=body: events(url, body) for name, body in BODIES.items()},
    "requests of 6,000 headers": lambda url: long_heads(url, {f"x{number}": "a" for number in range(6_000)}),
    "cookies without names": lambda url: long_heads(url, {"cookie": ";" * 58_000}),
    "imports with new cookies": lambda url: newcomers(url, "/import", b"[" * MB),
    "uploads with new cookies": lambda url: newcomers(url, f"{API}upload", b"x" * MB),
    "names of more than 255 bytes": lambda url: long_names(url, ["x" * 256, "x" * 300 + ".js", "x/" * 3000]),
}
MORE: dict[str, Callable[[str], object]] = {
    "settings at once": settings_at_once,
    "pages with long prompts": pages_with_prompts,
    "120 messages to a running answer": steers_at_once,
    "answers to questions that nobody asked": answers_to_questions,
    "connections of a byte a second": slow_connections,
    "bodies in chunks of a byte": small_chunks,
    "names that strangers invent": invented_names,
    "files of the program": files_of_the_program,
    "events that nobody reads": unread_events,
    "Markdown of one sign": markdown,
    "odd heads and bodies": odd_requests,
}
"""Those of newer routes, and of slow connections."""
