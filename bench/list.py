"""Measures the list of conversations in the server: a page of it, the next page, and searches.

`python -m bench.list` stores 5,000 conversations of ten messages of one visitor, beside 500 of another one, and prints
the times of the calls of `ConversationList`, as the routes make them. If a median is above 100 ms, it exits with 1.

`--store URL` measures another store than a new SQLite file, in an empty database. `--store postgresql` starts the
PostgreSQL of the tests, which writes each statement into its log. `--words` are those of an answer; a prompt has a
third of them. `--conversations 1000 --words 800` are 10,000 long messages with 30 MB of text.
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

from agent.files.store import MediaStore
from agent.history import Conversation, Entry, HistoryStore, open_store
from agent.web.chat.answers import LiveRuns, RunningAnswers
from agent.web.chat.conversation_list import PAGE, ConversationList
from agent.web.chat.questions import Replies
from tests.support import postgres_server

OWNER, OTHER = "visitor", "neighbour"
CONVERSATIONS, OTHERS, TURNS = 5_000, 500, 5
ANSWER_WORDS = 60
ROUNDS, CONCURRENT = 20, 16
LIMIT_MS = 100.0
RARE, COMMON, ABSENT = "xylograph", "harbour", "quetzalcoatl"
"""Words of the searches: of one message, of nearly every conversation, and of none."""


def main() -> int:
    """Run the bench. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--store", default="sqlite", metavar="URL", help="as in [history] store of configs/app.toml")
    parser.add_argument("--conversations", type=int, default=CONVERSATIONS)
    parser.add_argument("--words", type=int, default=ANSWER_WORDS, help="of an answer")
    given = parser.parse_args()
    return asyncio.run(_measure(given.store, given.conversations, given.words))


async def _measure(url: str, conversations: int, words: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        url = postgres_server.url_of(Path(folder)) if url == "postgresql" else url
        store = await open_store(url, folder=Path(folder))
        try:
            began = perf_counter()
            await _fill(store, conversations, words)
            print(f"{conversations:,} conversations of {2 * TURNS} messages stored in {perf_counter() - began:.0f} s")
            media, running = MediaStore(Path(folder) / "media"), RunningAnswers(store, LiveRuns(None))
            listed = ConversationList(store, media, running, Replies())
            return await _print_times(listed, conversations)
        finally:
            await store.aclose()
            postgres_server.stop_shared_server()


async def _fill(store: HistoryStore, conversations: int, answer_words: int) -> None:
    writer = _Writer(answer_words)
    numbers = [(OWNER, number) for number in range(conversations)] + [(OTHER, number) for number in range(OTHERS)]
    writer.chance.shuffle(numbers)
    for at in range(0, len(numbers), CONCURRENT):
        some = numbers[at : at + CONCURRENT]
        await asyncio.gather(*(_store_one(store, owner, number, writer) for owner, number in some))


async def _store_one(store: HistoryStore, owner: str, number: int, writer: "_Writer") -> None:
    rare = RARE if (owner, number) == (OWNER, 7) else ""
    entries: list[Entry] = []
    for message in writer.messages(rare):
        entries.append(Entry(parent_id=entries[-1].id if entries else None, message=message))
    conversation = Conversation(owner=owner, title=writer.text(6), head_id=entries[-1].id, pinned=number < 5)
    if number % 2:  # the last question was edited
        other = [*writer.messages("")][-2:]
        for message, parent in zip(other, (entries[-3].id, None), strict=True):
            entries.append(Entry(parent_id=parent or entries[-1].id, message=message))
        conversation = replace(conversation, branches=(entries[-1].id,))
    await store.save(conversation, entries)


class _Writer:
    """Writes random messages. A prompt has a third of the words of an answer."""

    def __init__(self, answer_words: int) -> None:
        self.chance = chance = random.Random(1)
        self._words = [f"{chance.choice('bdfgklmnprst')}{number:x}{chance.choice('aeiou')}" for number in range(4_000)]
        self._answer_words = answer_words

    def text(self, words: int) -> str:
        return " ".join(self.chance.choices(self._words, k=words))

    def messages(self, rare: str) -> Iterator[ModelMessage]:
        for turn in range(TURNS):
            asked = [self.text(self._answer_words // 3), COMMON if turn == 1 else "", rare if turn == 0 else ""]
            yield ModelRequest([UserPromptPart(" ".join(asked))])
            yield ModelResponse([TextPart(self.text(self._answer_words))])


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
