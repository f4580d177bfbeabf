"""Attacks with exports and pages of links, whose work must end with their readers and hold up nobody."""

import json
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.parse import urlsplit

import httpx

from bench.attack.client import Client

MARKDOWN = "A **word** and `code` and [a](https://b.example) text.\n\n"


def long_chat(client: Client, megabytes: float) -> str:
    """Import a chat with a long text. Return its id."""
    text = MARKDOWN * int(megabytes * 1_000_000 / len(MARKDOWN))
    said = {"uuid": "1", "sender": "assistant", "content": [{"type": "text", "text": text}]}
    body = json.dumps([{"name": "long", "chat_messages": [said]}])
    lines = client.http.post("/import", content=body).raise_for_status().text.splitlines()
    return json.loads(lines[-1])["conversations"][0]


def exports_at_once(url: str, count: int = 40) -> dict[str, int]:
    """Begin exports of one visitor at the same moment. Return the number of each status."""
    with Client(url) as client, ThreadPoolExecutor(count) as pool:
        chat = long_chat(client, 0.3)
        asked = [pool.submit(client.http.get, f"/export/{chat}?format=html") for _ in range(count)]
        return dict(Counter(str(one.result().status_code) for one in asked))


def hung_up(url: str, megabytes: float = 1.0, count: int = 6) -> str:
    """Begin exports and hang up. Return the status of the next one."""
    with Client(url) as client:
        chat = long_chat(client, megabytes)
        cookie = "; ".join(f"{name}={value}" for name, value in client.http.cookies.items())
        for _ in range(count):
            _hang_up(url, f"/export/{chat}?format=html", cookie)
        with suppress(httpx.HTTPError), client.http.stream("GET", f"/export/{chat}?format=json") as answer:
            return f"the next export: {answer.status_code}"
    return "the next export did not answer"


def _hang_up(url: str, path: str, cookie: str) -> None:
    place = urlsplit(url)
    with socket.create_connection((place.hostname or "127.0.0.1", place.port or 80), timeout=10) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nhost: {place.netloc}\r\ncookie: {cookie}\r\n\r\n".encode())


def looks_hung_up(url: str, megabytes: float = 4.0, count: int = 50) -> str:
    """Look at a long text and hang up, again and again. Return the status of the next look."""
    with Client(url) as client:
        path = f"/conversations/{long_chat(client, megabytes)}?format=blocks"
        cookie = "; ".join(f"{name}={value}" for name, value in client.http.cookies.items())
        for _ in range(count):
            _hang_up(url, path, cookie)
        return f"the next look: {client.http.get(path).status_code}"


def costly_values(url: str, element: bytes, count: int = 1) -> str:
    """Import elements of the largest size with as many values as they hold. Return the end of the answer."""
    with Client(url) as client:
        return client.http.post("/import", content=b"[" + b",".join([element] * count) + b"]").text[-200:]


ATTACKS: dict[str, Callable[[str], object]] = {
    "40 exports at once, one cookie": exports_at_once,
    "six exports of 1 MB of Markdown that hang up": hung_up,
    "50 looks at 4 MB of Markdown that hang up": looks_hung_up,
    "an import of 16 million numbers each": lambda url: costly_values(url, b'{"a":[' + b"1," * 15_900_000 + b"1]}"),
    "an import of halves of emoji": lambda url: costly_values(url, b'{"a":"' + b"\\ud800" * 2_600_000 + b'"}'),
}
