"""Runs of scripts: strategies for what a fake model plays, the tools that it calls, and the finished run."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from agent import Agent, Limits, Options, Run, tool
from agent.files.store import MediaStore
from agent.history import Conversation, Entry, HistoryStore
from agent.web.chat.journal import Omitted, StoreJournal
from agent.web.chat.transcript import TurnBubble, fold_responses
from tests.support.fakes import Act, Call, FakeConnection, Step, Words
from tests.tiers import examples

QUICK = settings(max_examples=examples(80), suppress_health_check=[HealthCheck.too_slow])
OWNER = "visitor:alice"
SNIPPETS = [
    *(
        *("\n", "\n\n", "\r\n", " ", "\t", "  indented", "word", " two words", "```py\n\tx = 1\n```\n"),
        *("| a | b |", "$x^2$"),
    ),
    *("\U0001f600", "\U0001f469\u200d\U0001f4bb", "e\u0301", "\u00e9", "\u4e2d\u6587", "\u2028", "<b>&amp;", "\x00"),
]
TEXTS = st.lists(st.sampled_from(SNIPPETS), max_size=5).map("".join)


@st.composite
def chunks(draw: st.DrawFn) -> list[str]:
    """Draw a text that is cut anywhere: within a word, after a base letter, or within a surrogate pair."""
    units = draw(TEXTS).encode("utf-16-le")
    length = len(units) // 2
    cuts = sorted(draw(st.lists(st.integers(0, length), max_size=6)))
    bounds = zip([0, *cuts], [*cuts, length], strict=True)
    return [units[2 * a : 2 * b].decode("utf-16-le", "surrogatepass") for a, b in bounds]


WORDS = st.builds(Words, st.sampled_from(["output_text", "reasoning"]), chunks())
OUTCOMES = ["fine", "plain", "silent", "broken", "typed", "slow", "no_such_tool", "stopper"]
ARGUMENTS = st.sampled_from(["{}", "", '{"x": 3}', '{"x": "three"}', '{"x": ', "[1]", "null", '{"x": "\\ud83d"}'])
CALLS = st.builds(Call, st.sampled_from(OUTCOMES), ARGUMENTS, st.sampled_from([None, "", "a", "b"]))
WITHHELD = st.builds(
    Step,
    st.lists(WORDS, max_size=2),
    st.sampled_from(["content_filter", None, "error"]),
    reason=st.sampled_from(["SAFETY", "recitation", "BLOCKLIST", "Model-Armor", "refused"]),
)
"""Answers that are withheld, whether the library knows the provider's finish reason or not."""
ACTS = st.builds(Act, st.sampled_from(["cancel", "fail", "hang"]))


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    """Draw up to two steps with calls, then one with any ending, and a fault or a stop anywhere."""
    out: list[Step] = []
    for _ in range(draw(st.integers(0, 2))):
        items = draw(st.lists(WORDS, max_size=3)) + draw(st.lists(CALLS, min_size=1, max_size=3))
        out.append(Step(draw(st.permutations(items)), draw(st.sampled_from(["tool_call", "stop"]))))
    finish = draw(st.sampled_from(["stop", "length", "content_filter", "error", None, "blocked", "withheld"]))
    if finish == "blocked":
        out.append(Step([], "content_filter", draw(st.sampled_from(["safety", "other"]))))
    elif finish == "withheld":
        out.append(draw(WITHHELD))
    else:
        out.append(Step(draw(st.lists(WORDS, max_size=5)), cast(Any, finish)))
    if draw(st.booleans()):
        number = draw(st.integers(0, len(out) - 1))
        items = list(out[number].items)
        items.insert(draw(st.integers(0, len(items))), draw(ACTS))
        out[number] = replace(out[number], items=items)
    return out


LIMITS = st.integers(1, 4).map(lambda number: Limits(steps=number, tool_seconds=0.01, retries=0))


def scripted_tools(cancel: Callable[[], None]) -> list[Any]:
    async def fine() -> str:
        return " fine\n"

    def plain() -> dict[str, Any]:
        return {"plain": [1, None, "\u00e9"]}

    async def silent() -> None:
        return None

    async def broken() -> None:
        raise LookupError("no luck")

    async def typed(x: int) -> int:
        return x + 1

    async def slow() -> None:
        await asyncio.get_running_loop().create_future()

    @tool(timeout=30)
    async def stopper() -> None:
        cancel()
        await asyncio.get_running_loop().create_future()

    return [fine, tool(timeout=30)(plain), silent, broken, typed, slow, stopper]


@dataclass
class Played:
    """A finished run, what a reader saw of it, and what the store has."""

    run: Run
    bubbles: list[TurnBubble]
    entries: list[Entry]
    connection: FakeConnection


async def play_script(
    script: Sequence[Step],
    limits: Limits,
    store: HistoryStore,
    earlier: Played | None = None,
    prompt: str = "Hello",
    options: Options | None = None,
    **more: Any,
) -> Played:
    connection = FakeConnection(script, **more)
    runs: list[Run] = []
    agent = Agent(connection, tools=scripted_tools(lambda: runs[0].cancel()), limits=limits, system_message="Be brief.")
    conversation = Conversation(owner=OWNER)
    journal = StoreJournal(store, MediaStore(Path("nowhere")), conversation, Omitted())
    context = earlier.run.context if earlier else None
    runs.append(run := agent.run(prompt, context=context, journal=journal, options=options))
    connection.played.cancel = run.cancel
    bubbles: list[TurnBubble] = []
    async for response in run:
        fold_responses(bubbles, [response])
    assert run.result is not None
    return Played(run, bubbles, await store.history(journal.conversation), connection)
