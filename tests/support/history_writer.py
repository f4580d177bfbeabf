"""A process that changes a history store in files, and is killed at each of its steps. Its argument is the URL."""

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.history import Conversation, HistoryStore, RunEvent, RunEvents, open_store
from tests.support.history_stores import ALICE, chain, prompt

MESSAGES = 3
"""Messages of each turn."""
FILE_STEPS = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.utime"}
"""What Python reports of the steps that change files, besides "open"."""


def events_of(conversation: Conversation, number: int, *, run: str = "run", ended: bool = False) -> RunEvents:
    """Return one event of a run with its number as its content."""
    event = RunEvent.of(number, {"content": str(number)})
    return RunEvents(
        run_id=run, conversation_id=conversation.id, owner=conversation.owner, events=[event], has_ended=ended
    )


async def take_turn(store: HistoryStore, conversation: Conversation, turn: int, run: str) -> Conversation:
    """Save some messages and an event at once."""
    entries = chain(*(prompt(f"{turn}.{number}") for number in range(MESSAGES)), after=conversation.head_id)
    return await store.save(
        replace(conversation, head_id=entries[-1].id), entries, events_of(conversation, turn + 1, run=run)
    )


def kill_at_each_step(url: str) -> None:
    """Save to an old and a new conversation and delete one, in one process for each step that is killed there.

    Prints the number of steps and the status of the last process. The conversations "old-N" and "gone-N" must exist.
    """
    store = asyncio.run(open_store(url, folder=Path("unused")))
    step = 0
    while True:
        child = os.fork()
        if not child:
            asyncio.run(_change_until(store, step))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            print(step, os.WEXITSTATUS(status), flush=True)
            return
        step += 1


async def _change_until(store: HistoryStore, last: int) -> None:
    """Change three conversations, and kill this process after this number of steps with files."""
    steps = 0

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal steps
        if event in FILE_STEPS or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            steps += 1
            if steps > last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    old = await store.get(f"old-{last}", owner=ALICE)
    await take_turn(store, old, 1, f"run of {old.id}")
    await take_turn(store, Conversation(id=f"new-{last}", owner=ALICE), 0, f"run of new-{last}")
    await store.delete(f"gone-{last}", owner=ALICE)


if __name__ == "__main__":
    kill_at_each_step(sys.argv[1])
