"""Attacks with chats of many branches, whose owner goes from one to another, reads the tree and searches."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import httpx

from bench.attack.chats import AT, bring, ours, said
from bench.attack.client import Client


def answered(number: int, after: int | None, text: str = "Pear.") -> Iterator[dict[str, Any]]:
    """Yield a message of a visitor and its answer. The answer has the next number."""
    yield said(number, after, text)
    message = {"kind": "response", "parts": [{"part_kind": "text", "content": text}], "timestamp": AT}
    yield {"id": f"{number + 1}", "parent_id": f"{number}", "message": message, "note": {"at": AT, "ended": "stop"}}


def comb(turns: int = 7_000) -> dict[str, Any]:
    """Return a chat in which each message was edited once: a branch after each turn."""
    entries = [one for n in range(turns) for one in answered(4 * n, 4 * n - 3 if n else None)]
    edited = [one for n in range(turns) for one in answered(4 * n + 2, 4 * n - 3 if n else None, f"Plum {n}.")]
    ends = [f"{4 * n + 3}" for n in range(turns)]
    return ours({"branches": ends}, [*edited, *entries])


def fan(count: int = 14_000) -> dict[str, Any]:
    """Return a chat whose second message was edited so many times, and taken back then."""
    edited = [one for n in range(count) for one in answered(2 * n + 2, 1, f"Pear {n}.")]
    ends = [f"{2 * n + 3}" for n in range(count)]
    chat = ours({"branches": ends}, [*edited, *answered(0, None)])
    return {**chat, "conversation": {**chat["conversation"], "head_id": "1"}}


def retries(count: int = 14_000) -> dict[str, Any]:
    """Return a chat whose first message was answered so many times."""
    ends = [f"{2 * n + 1}" for n in range(count - 1)]
    return ours({"branches": ends}, [one for n in range(count) for one in answered(2 * n, None)])


def long_turn(answers: int = 1_999) -> dict[str, Any]:
    """Return a chat with one message of a visitor and so many answers to it, one after the other."""
    parts = [{"part_kind": "text", "content": "Pear."}]
    entries = [said(0, None, "Pears?")]
    for n in range(1, answers + 1):
        message = {"kind": "response", "parts": parts, "timestamp": AT}
        entries.append(
            {"id": f"{n}", "parent_id": f"{n - 1}", "message": message, "note": {"at": AT, "run_id": f"{n}"}}
        )
    return ours({"branches": ["5", "9"]}, entries)


def walks(url: str, chat: Mapping[str, Any], times: int = 80, at_once: int = 12) -> dict[str, str]:
    """Import a chat for two visitors, who go from branch to branch, read the tree and search, so many at once.

    Return how often each status was answered, and after how many seconds at most.
    """
    seconds, statuses = dict[str, float](), Counter[str]()

    def ask(client: Client, method: str, path: str, name: str) -> httpx.Response | None:
        began, answer, status = time.monotonic(), None, "no answer"
        with suppress(httpx.HTTPError):
            answer = client.http.request(method, path, timeout=120)
            status = f"{answer.status_code}"
        statuses[f"{name} {status}"] += 1
        seconds[name] = max(seconds.get(name, 0.0), time.monotonic() - began)
        return answer

    with ExitStack() as stack:
        places = list[tuple[Client, str, list[str]]]()
        for _ in range(2):
            client = stack.enter_context(Client(url))
            one = f"/conversations/{bring(client, [chat])[0]}"
            stored = client.http.get(f"/export/{one.rpartition('/')[2]}").json()[1]["entries"]
            places.append((client, one, [stored[n * len(stored) // 100]["id"] for n in range(100)]))

        def step(number: int) -> None:
            client, one, rows = places[number % 2]
            row = rows[number % len(rows)]
            asked = (
                *("POST /messages/ROW/show", "GET /branches", "GET ?format=blocks", "GET /search?q=pear"),
                *("GET /messages/ROW", "GET /messages/ROW/text", "DELETE /branches/ROW"),
            )
            name = asked[number // 2 % len(asked)]
            method, path = name.split(" ")
            ask(client, method, one + path.replace("ROW", row), name)

        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(step, range(times)))
        for client, one, _rows in places:
            ask(client, "DELETE", one, "delete")
    return {name: f"{seconds[name.rpartition(' ')[0]]:.1f} s, {count} times" for name, count in statuses.items()}


ATTACKS: dict[str, Callable[[str], object]] = {
    "a branch after each of 7,000 turns": lambda url: walks(url, comb()),
    "14,000 edits that were taken back": lambda url: walks(url, fan()),
    "14,000 answers to one message": lambda url: walks(url, retries()),
    "a turn of 2,000 messages": lambda url: walks(url, long_turn()),
}
