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


def _hang_up(url: str, path: str, cookie: str, body: str = "") -> None:
    """Send a request, or with a body a change, and close the connection at once."""
    place, method = urlsplit(url), "PATCH" if body else "GET"
    head = f"{method} {path} HTTP/1.1\r\nhost: {place.netloc}\r\ncookie: {cookie}\r\n"
    with socket.create_connection((place.hostname or "127.0.0.1", place.port or 80), timeout=10) as connection:
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())


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


def long_texts(url: str, megabytes: float = 5.0) -> dict[str, int]:
    """Ask each route for a chat with a text of the visitor and of the model, and a result of a tool, of this length."""
    text = MARKDOWN * int(megabytes * 1_000_000 / len(MARKDOWN))
    part = {"type": "text", "text": text}
    said = [
        {"uuid": "1", "sender": "human", "text": text},
        {
            "uuid": "2",
            "sender": "assistant",
            "content": [
                part,
                {"type": "tool_use", "id": "1", "name": "look", "input": {"at": text[:1000]}},
                {
                    "type": "tool_result",
                    "tool_use_id": "1",
                    "name": "look",
                    "content": [{"type": "text", "text": text}],
                },
            ],
        },
    ]
    with Client(url) as client:
        body = json.dumps([{"name": "long", "chat_messages": said}])
        lines = client.http.post("/import", content=body).raise_for_status().text.splitlines()
        chat = json.loads(lines[-1])["conversations"][0]
        one = f"/conversations/{chat}"
        shown = client.http.get(f"{one}?format=blocks").json()["turns"]
        link = client.http.post(f"{one}/links", json={"days": 1}).json()["path"]
        paths = [f"{one}?format=blocks", f"{one}/messages/{shown[-1]['id']}/text", link, "/conversations?q=word"]
        paths += [f"/export/{chat}?format={form}" for form in ("json", "markdown", "html")]
        return {path.replace(chat, "CHAT"): client.http.get(path).status_code for path in paths} | {
            "copy": client.http.post(f"{link}/continue").status_code
        }


def edits_hung_up(url: str, count: int = 50, characters: int = 190_000) -> str:
    """Edit a message to a long text and hang up, again and again. Return the status of the next look."""
    with Client(url) as client:
        sent = client.send("!text Short.")
        client.read(sent)
        chat = f"/conversations/{sent.json()['conversation']}"
        message = client.http.get(f"{chat}?format=blocks").json()["turns"][-1]["id"]
        cookie = "; ".join(f"{name}={value}" for name, value in client.http.cookies.items())
        body = json.dumps({"text": "word " * (characters // 5)})
        for _ in range(count):
            _hang_up(url, f"{chat}/messages/{message}", cookie, body)
        return f"the next look: {client.http.get(chat).status_code}"


def files_of_links(url: str, count: int = 700) -> dict[str, int]:
    """Ask for files of a link to a long chat, again and again. Return the number of each status."""
    with Client(url) as client, ThreadPoolExecutor(8) as pool:
        one = f"/conversations/{long_chat(client, 0.3)}"
        path = client.http.post(f"{one}/links", json={"days": 1, "attachments": True}).json()["path"]
        asked = [pool.submit(client.http.get, f"{path}/files/{number:064x}.png") for number in range(count)]
        return dict(Counter(str(one.result().status_code) for one in asked))


ATTACKS: dict[str, Callable[[str], object]] = {
    "40 exports at once, one cookie": exports_at_once,
    "six exports of 1 MB of Markdown that hang up": hung_up,
    "50 looks at 4 MB of Markdown that hang up": looks_hung_up,
    "texts of 2 MB on all routes": lambda url: long_texts(url, 2.0),
    "50 long edits that hang up": edits_hung_up,
    "700 files of a link": files_of_links,
    "an import of 16 million numbers each": lambda url: costly_values(url, b'{"a":[' + b"1," * 15_900_000 + b"1]}"),
    "an import of halves of emoji": lambda url: costly_values(url, b'{"a":"' + b"\\ud800" * 2_600_000 + b'"}'),
}
