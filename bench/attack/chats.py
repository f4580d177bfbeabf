"""Chats of many or of long messages, whose owner looks at them, searches, exports, copies and deletes them."""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import httpx

from bench.attack.client import Client

MESSAGES = 30_000
AT = "2026-01-01T00:00:00Z"


def long_chat(url: str, messages: int = MESSAGES, characters: int = 0) -> dict[str, str]:
    """Import a chat and do with it what its owner can do. Return the status and the seconds of each step.

    Each message has about this many characters more than a short sentence.
    """
    more = " A *word*." * (characters // 10)
    said = [
        {"uuid": f"{n}", "sender": ("human", "assistant")[n % 2], "text": f"Message {n} of pears.{more}"}
        for n in range(messages)
    ]
    told = dict[str, str]()
    with Client(url) as client:

        def step(name: str, work: Callable[[], httpx.Response]) -> httpx.Response | None:
            began, status = time.monotonic(), "no answer"
            answer = None
            with suppress(httpx.HTTPError):
                answer = work()
                status = str(answer.status_code)
            told[name] = f"{status} in {time.monotonic() - began:.1f} s"
            return answer

        body = json.dumps([{"name": "long", "chat_messages": said}])
        imported = step("import", lambda: client.http.post("/import", content=body, timeout=300))
        if imported is None or not imported.is_success:
            return told
        chat = json.loads(imported.text.splitlines()[-1])["conversations"][0]
        one, export = f"/conversations/{chat}", f"/export/{chat}"
        step("list", lambda: client.http.get("/conversations"))
        step("open", lambda: client.http.get(f"/c/{chat}"))
        step("search", lambda: client.http.get("/conversations?q=pears"))
        step("own data", lambda: client.http.get("/own-data"))
        sent = step("go on", lambda: client.send("!text Hi.", chat))
        if sent is not None and sent.is_success:
            client.read(sent)
        for form in ("json", "markdown", "html"):
            step(f"export {form}", lambda form=form: client.http.get(f"{export}?format={form}", timeout=300))
        link = step("link", lambda: client.http.post(f"{one}/links", json={"days": 1}))
        if link is not None and link.is_success:
            path = link.json()["path"]
            step("shared page", lambda: client.http.get(path, timeout=300))
            step("copy", lambda: client.http.post(f"{path}/continue", timeout=300))
        step("delete", lambda: client.http.delete(one, timeout=120))
        step("delete all", lambda: client.http.delete("/own-data", timeout=120))
    return told


def ours(record: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a chat in the app's own format."""
    head = entries[-1]["id"]
    return {"conversation": {"id": "chat", "title": "Chat", "head_id": head, **record}, "entries": [*entries]}


def said(number: int, after: int | None, text: str, **note: Any) -> dict[str, Any]:
    """Return a message of a visitor in the app's own format."""
    part = {"part_kind": "user-prompt", "content": text, "timestamp": AT}
    parent = None if after is None else f"{after}"
    return {
        "id": f"{number}",
        "parent_id": parent,
        "message": {"kind": "request", "parts": [part]},
        "note": {"at": AT, **note},
    }


def bring(client: Client, chats: Sequence[Mapping[str, Any]]) -> list[str]:
    """Import chats in the app's own format. Return their ids."""
    chats = [{**one, "conversation": {**one["conversation"], "id": f"chat {n}"}} for n, one in enumerate(chats)]
    body = json.dumps([{"switchboard": 1}, *chats])
    lines = client.http.post("/import", content=body, timeout=300).raise_for_status().text.splitlines()
    return json.loads(lines[-1]).get("conversations", [])


def long_records(url: str, chats: int = 30, times: int = 20) -> dict[str, int]:
    """Import chats with much besides their messages, and list them again and again. Return each status."""
    more = {
        "title": "pear " * 20_000,
        "branches": ["0"] * 60_000,
        "pending": ["call"] * 20_000,
        "source": "x" * 100_000,
        "summary": {"message": "0", "text": "word " * 20_000, "model": "m" * 100_000, "at": AT},
    }
    with Client(url) as client:
        for some in range(0, chats, 10):
            bring(client, [ours(more, [said(0, None, f"pears {some}")])] * 10)
        paths = ("/conversations?limit=200", "/conversations?q=pears", "/own-data", "/")
        found = [client.http.get(path).status_code for _ in range(times) for path in paths]
        return dict(Counter(map(str, found)))


def looks(url: str, chat: Mapping[str, Any], times: int = 5) -> dict[str, str]:
    """Import a chat, and look at it again and again. Return the status of each route, and the longest seconds."""
    told = dict[str, str]()
    with Client(url) as client:
        ids = bring(client, [chat])
        if not ids:
            return {"import": "refused"}
        one = f"/conversations/{ids[0]}"
        shown = client.http.get(f"{one}?format=blocks", timeout=300).json()["turns"]
        message = f"{one}/messages/{shown[-1]['id']}"
        link = client.http.post(f"{one}/links", json={"days": 1}).json()["path"]
        asked = {
            **{path.replace(one, ""): ("GET", path) for path in (f"/c/{ids[0]}", f"{one}?format=blocks", message)},
            **{path.replace(message, "MESSAGE"): ("GET", path) for path in (f"{message}/text", f"{one}/window")},
            **{name: ("POST", f"{message}/{name}") for name in ("show", "copy")},
            "link": ("GET", link),
        }
        for name, (method, path) in asked.items():
            for _ in range(times):
                began, status = time.monotonic(), "no answer"
                with suppress(httpx.HTTPError):
                    status = str(client.http.request(method, path, timeout=60).status_code)
                took = time.monotonic() - began
                told[name] = max(told.get(name, ""), f"{took:06.2f} s, {status}")
    return told


def far_columns(messages: int = 20_000, columns: int = 60) -> dict[str, Any]:
    """Return a chat whose last messages claim to be one message with the first ones, to other models."""
    chat = [said(n, n - 1 if n else None, "Pear.") for n in range(messages)]
    for n in range(messages - columns, messages):
        chat[n]["note"]["compared"] = [f"{n}", *(f"{3 * (messages - 1 - n) + other}" for other in range(3))]
    return ours({}, chat)


def many_versions(count: int = 15_000) -> dict[str, Any]:
    """Return a chat that began so many times."""
    begun = [said(n, None, f"Pear {n}.") for n in range(count)]
    return ours({"branches": [f"{n}" for n in range(count - 1)]}, begun)


WORDS = (
    "a" * 199 + "b",
    " ".join(chr(97 + n) + chr(97 + m) for n in range(8) for m in range(8)),
    "a\u0301" * 100,
    "\ufdfa" * 11 + " z",
    "\u03b1 \u05d0 \u0e01 \u4e00 \uac00 z",
    "\U0001f469\u200d" * 66,
)
"""Queries that no text has, but almost."""


def searches(url: str, visitors: int = 4, chats: int = 8, megabytes: float = 2.0, times: int = 120) -> dict[str, str]:
    """Search all chats and within one, for words that long texts almost have, as several visitors at once."""
    texts = [text * int(megabytes * 1_000_000 / len(text.encode())) for text in ("a", "a\u0301", "\u4e00z \u03b1")]
    longest = dict[str, float]()
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(url)) for _ in range(visitors)]
        ids = [bring(one, [ours({}, [said(0, None, texts[n % 3])]) for n in range(chats)]) for one in clients]

        def ask(number: int) -> None:
            at, query = number % visitors, WORDS[number // visitors % len(WORDS)]
            name = "search in a chat" if number // visitors % 3 == 0 and ids[at] else "search"
            path = "/conversations" if name == "search" else f"/conversations/{ids[at][number % len(ids[at])]}/search"
            began = time.monotonic()
            status = clients[at].http.get(path, params={"q": query}).status_code
            name = f"{name} {status}"
            longest[name] = max(longest.get(name, 0.0), time.monotonic() - began)

        with ThreadPoolExecutor(12) as pool:
            list(pool.map(ask, range(times)))
    return {name: f"{seconds:.1f} s" for name, seconds in longest.items()}


ATTACKS: dict[str, Callable[[str], object]] = {
    f"a chat of {MESSAGES:,} messages": long_chat,
    "a chat of 28 messages of 1 MB": lambda url: long_chat(url, 28, 1_000_000),
    "records with long lists": long_records,
    "columns of a whole chat": lambda url: looks(url, far_columns()),
    "searches for what is almost there": searches,
    "a chat that began 15,000 times": lambda url: looks(url, many_versions()),
}
