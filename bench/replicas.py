"""Measures what one database carries for several processes: the events of answers, and the looks of pages at them.

`python -m bench.replicas` starts the PostgreSQL and the Redis of the tests and measures each for `SECONDS`. One process
makes the calls, as many at once as a page has connections, so the client's CPU is part of the figures. An answer stores
its events twice a second, which renews its lease, and a page that another process serves looks at them four times a
second.
"""

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter

from agent.history import Conversation, RunEvent, RunEvents, now
from agent.web.chat.answers import EVENT_READ_SECONDS
from agent.web.chat.journal import SHARED_STORE_SECONDS
from tests.support import postgres_server
from tests.support.history_stores import SERVERS, STORES

SECONDS = 10.0
RUNS, AT_ONCE = 200, 10
BATCH = 15
"""Events of half a second of an answer with 30 tokens a second."""


def main() -> int:
    """Run the bench. Return the exit status."""
    for name in SERVERS:
        print(asyncio.run(_measure(name)))
    return 0


async def _measure(name: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        store = await STORES[name](Path(folder), now)
        try:
            conversations = [await store.save(Conversation(owner=f"visitor{number}")) for number in range(RUNS)]
            last = dict.fromkeys((conversation.id for conversation in conversations), 0)

            async def append(conversation: Conversation) -> None:
                events = [_event(last[conversation.id] + 1 + place) for place in range(BATCH)]
                last[conversation.id] += BATCH
                await store.runs.append(_batch(conversation, events))

            async def look(conversation: Conversation) -> None:
                await store.runs.events(conversation.id, owner=conversation.owner, after=last[conversation.id] - BATCH)

            writes, looks = await _rate(conversations, append), await _rate(conversations, look)
            return (
                f"{name}: {writes:.0f} batches of events a second, so {writes * SHARED_STORE_SECONDS:.0f} answers at "
                f"once; {looks:.0f} looks a second, so {looks * EVENT_READ_SECONDS:.0f} pages of other processes"
            )
        finally:
            await store.aclose()
            postgres_server.stop_shared_server()


async def _rate(conversations: list[Conversation], call: Callable[[Conversation], Awaitable[None]]) -> float:
    """Return the calls per second. Each conversation is in one worker's hands, so that its batches are in order."""
    done, end = 0, perf_counter() + SECONDS

    async def work(first: int) -> None:
        nonlocal done
        while perf_counter() < end:
            for conversation in conversations[first::AT_ONCE]:
                await call(conversation)
                done += 1

    began = perf_counter()
    await asyncio.gather(*(work(first) for first in range(AT_ONCE)))
    return done / (perf_counter() - began)


def _event(number: int) -> RunEvent:
    return RunEvent.of(number, {"type": "output_text", "content": "words ", "is_type_switched": False})


def _batch(conversation: Conversation, events: list[RunEvent]) -> RunEvents:
    return RunEvents(run_id=conversation.id, conversation_id=conversation.id, owner=conversation.owner, events=events)


if __name__ == "__main__":
    sys.exit(main())
