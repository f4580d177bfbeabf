"""Measures the list of conversations in the server: a page of it, the next page, and searches.

`python -m bench.list` stores 5,000 conversations of ten messages of one visitor, beside 500 of another one, and prints
the times of the calls of `ConversationList`, as the routes make them. If a median is above 100 ms, it exits with 1.

`--store URL` measures another store than a new SQLite file, in an empty database. `--store postgresql` starts the
PostgreSQL of the tests, which writes each statement into its log.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart

from agent.history import Entry, HistoryStore, Record, open_store
from agent.media.store import MediaStore
from agent.web.chat.conversation_list import PAGE, ConversationList
from agent.web.chat.live_runs import LiveRuns
from agent.web.chat.replies import Replies
from agent.web.chat.running_answers import RunningAnswers
from tests.support import postgres_server

OWNER, OTHER = "visitor", "neighbour"
CONVERSATIONS, OTHERS, TURNS = 5_000, 500, 5
PROMPT_WORDS, ANSWER_WORDS = 20, 60
ROUNDS, CONCURRENT = 20, 16
LIMIT_MS = 100.0
RARE, COMMON, ABSENT = "xylograph", "harbour", "quetzalcoatl"
"""Words of the searches: of one message, of nearly every conversation, and of none."""


def main() -> int:
    """Run the bench. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--store", default="sqlite", metavar="URL", help="as in [history] store of configs/app.toml")
    parser.add_argument("--conversations", type=int, default=CONVERSATIONS)
    given = parser.parse_args()
    return asyncio.run(_measure(given.store, given.conversations))


async def _measure(url: str, conversations: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        url = postgres_server.url_of(Path(folder)) if url == "postgresql" else url
        store = await open_store(url, folder=Path(folder))
        try:
            began = perf_counter()
            await _fill(store, conversations)
            print(f"{conversations:,} conversations of {2 * TURNS} messages stored in {perf_counter() - began:.0f} s")
            media, running = MediaStore(Path(folder) / "media"), RunningAnswers(store, LiveRuns(None))
            listed = ConversationList(store, media, running, Replies())
            return await _print_times(listed, conversations)
        finally:
            await store.aclose()
            postgres_server.stop_shared_server()


async def _fill(store: HistoryStore, conversations: int) -> None:
    chance = random.Random(1)
    words = [f"{chance.choice('bdfgklmnprst')}{number:x}{chance.choice('aeiou')}" for number in range(4_000)]
    numbers = [(OWNER, number) for number in range(conversations)] + [(OTHER, number) for number in range(OTHERS)]
    chance.shuffle(numbers)
    for at in range(0, len(numbers), CONCURRENT):
        some = numbers[at : at + CONCURRENT]
        await asyncio.gather(*(_store_one(store, owner, number, chance, words) for owner, number in some))


async def _store_one(store: HistoryStore, owner: str, number: int, chance: random.Random, words: list[str]) -> None:
    rare = RARE if (owner, number) == (OWNER, 7) else ""
    entries: list[Entry] = []
    for message in _messages(chance, words, rare):
        entries.append(Entry(parent_id=entries[-1].id if entries else None, message=message))
    record = Record(owner=owner, title=" ".join(chance.choices(words, k=6)), head_id=entries[-1].id)
    await store.save(replace(record, pinned=number < 5), entries)


def _messages(chance: random.Random, words: list[str], rare: str) -> Iterator[ModelMessage]:
    for turn in range(TURNS):
        asked = [*chance.choices(words, k=PROMPT_WORDS), COMMON if turn == 1 else "", rare if turn == 0 else ""]
        yield ModelRequest([UserPromptPart(" ".join(asked))])
        yield ModelResponse([TextPart(" ".join(chance.choices(words, k=ANSWER_WORDS)))])


async def _print_times(listed: ConversationList, conversations: int) -> int:
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "first page": lambda: listed.page(OWNER),
        "next page": lambda: listed.page(OWNER, offset=PAGE),
        "last page": lambda: listed.page(OWNER, offset=max(0, conversations - PAGE)),
        "search, one hit": lambda: listed.search(OWNER, RARE),
        "search, 50 hits of many": lambda: listed.search(OWNER, COMMON),
        "search, no hit": lambda: listed.search(OWNER, ABSENT),
        "search, two words": lambda: listed.search(OWNER, f"{COMMON} {RARE}"),
    }
    print(f"| call | median of {ROUNDS} | slowest |\n|---|---|---|")
    is_slow = False
    for name, call in calls.items():
        times = sorted([await _time(call) for _ in range(ROUNDS)])
        is_slow |= statistics.median(times) > LIMIT_MS
        print(f"| {name} | {statistics.median(times):.1f} ms | {times[-1]:.1f} ms |")
    return int(is_slow)


async def _time(call: Callable[[], Awaitable[object]]) -> float:
    began = perf_counter()
    await call()
    return (perf_counter() - began) * 1000


if __name__ == "__main__":
    sys.exit(main())
