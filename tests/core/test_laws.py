"""The laws of the response stream as properties of the real code: run, journal, store, render.

The expected responses are computed a second time from the script alone, and compared exactly.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    PartStartEvent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from agent import Agent, Approve, Endpoint, Limits, Options, Refuse, Run, tool
from agent.files.store import MediaStore
from agent.history import Conversation
from agent.history.memory import MemoryStore
from agent.history.sql.sqlite import SqliteStore
from agent.limits import explain_limit
from agent.local.manager import ServedModel
from agent.messages.openai import to_openai
from agent.messages.repair import keep_newest, prepare_messages, repair
from agent.providers import http as http
from agent.rendering.bubbles import Turn as ShownTurn
from agent.responses import BubbleMarker, StreamDecoder, finalize, pieces_of
from agent.settings import LocalSettings, Settings
from agent.web.app import build_conversations
from agent.web.chat.choices import Choices
from agent.web.chat.journal import Omitted, StoreJournal
from agent.web.chat.transcript import ConversationTurn, TurnBubble, fold_responses, to_turns
from agent.web.chat.turns import render_turn
from agent.web.chat.views import join_bubbles
from agent.web.chat.visitor import Visitor
from tests.support.fakes import Act, Call, FakeConnection, Step, Words
from tests.support.message_rules import assert_accepted, hello, one_prompt_each
from tests.support.models import QWEN3, FakeLocalModels
from tests.support.scripted_runs import (
    LIMITS,
    OWNER,
    QUICK,
    Played,
    chunks,
    play_script,
    scripted_tools,
    steps,
)
from tests.support.scripted_server import Running
from tests.support.strategies import conversations, responses
from tests.support.views import view_of, watch
from tests.tiers import examples

Said = tuple[str, Any]

# --- playing scripts --------------------------------------------------------------------------------------------------


EMPTY = ("The model returned an empty answer.", "The answer reached its maximum length before any text.")
REASONS = {"broken": "LookupError: no luck", "slow": "took longer than 0.01 s", "no_such_tool": "no tool named"}


def fails(call: Call) -> bool:
    """Return True if the result must be marked as an error."""
    takes = '{"x": 3}' if call.name == "typed" else "{}"
    none = ("", "null") if takes == "{}" else ()
    return call.name in ("broken", "slow", "no_such_tool", "stopper") or call.arguments not in (takes, *none)


def made(calls: Sequence[Call]) -> list[Call]:
    """Return the calls that are made: one that is sent again with its id is made once."""
    sent = {
        (call.id or number, call.name, _plain(call.arguments)): number for number, call in [*enumerate(calls)][::-1]
    }
    return [calls[number] for number in sorted(sent.values())]


def _plain(arguments: str) -> str:
    return "{}" if arguments in ("", "null") else arguments


def played(script: Sequence[Step], limits: Limits, options: Options | None = None) -> Played:
    return asyncio.run(play_script(script, limits, MemoryStore(), options=options))


# --- expected responses -----------------------------------------------------------------------------------------------


def spoken(words: Sequence[Words], *, hidden: bool = False) -> Iterator[Said]:
    """Yield the expected bubbles of text and reasoning parts, or of the text alone if the reasoning is `hidden`."""
    runs: list[tuple[str, list[str]]] = []
    after_reasoning = False
    for part in words:
        text = part.text
        if part.kind == "reasoning":
            after_reasoning = after_reasoning or text != ""
        elif text.strip():
            text, after_reasoning = (text.lstrip("\r\n") if after_reasoning else text), False
        if not text.strip() or (hidden and part.kind == "reasoning"):
            continue
        if runs and runs[-1][0] == part.kind:
            runs[-1][1].append(text)
        else:
            runs.append((part.kind, [text]))
    yield from ((kind, "\n\n".join(texts)) for kind, texts in runs)


def expected(script: Sequence[Step], limits: Limits, *, hidden: bool = False) -> tuple[list[Said], str]:
    """Return every bubble of the run and its finish reason. Results are in the order of their calls."""
    out: list[Said] = []
    for step in [*script, Step([Words("output_text", ["done"])])][: limits.steps]:
        act = next((at for at, item in enumerate(step.items) if isinstance(item, Act)), None)
        items = step.items[:act]
        out += spoken([item for item in items if isinstance(item, Words)], hidden=hidden)
        if act is not None:
            fault = cast(Act, step.items[act]).do == "fail"
            return [*out, *([("error", "The connection broke.")] if fault else [])], "error" if fault else "cancelled"
        calls = made([item for item in items if isinstance(item, Call)])
        seen = [*spoken([item for item in items if isinstance(item, Words)], hidden=hidden), *calls]
        if (step.reason or step.finish == "content_filter") and not step.blocked:
            category = step.reason.lower().replace("_", " ")
            sentence = f"The provider withheld the answer{f' (category: {category})' if category else ''}."
            return (out, "content_filter") if seen else ([*out, ("error", sentence)], "error")
        if step.finish in (None, "error"):
            return [*out, ("error", "The answer broke off: the model server ended it too early.")], "error"
        if step.blocked:
            return [*out, ("error", f"The provider withheld the answer (category: {step.blocked}).")], "error"
        if not seen:
            return [*out, ("error", EMPTY[step.finish == "length"])], "error"
        if not calls:
            return out, cast(str, step.finish)
        out += [("tool_call", call.name) for call in calls]
        out += [("tool_call_result", call.name) for call in calls]
        if any(call.name == "stopper" and _plain(call.arguments) == "{}" for call in calls):
            return out, "cancelled"
    return [*out, ("error", explain_limit("steps", limits))], "limit"


def shown(bubble: TurnBubble) -> Said:
    return bubble.first.type, bubble.content["name"] if isinstance(bubble.content, dict) else bubble.text


# --- laws 1 and 2 -----------------------------------------------------------------------------------------------------


@QUICK
@given(steps(), LIMITS)
@example([Step([Words("reasoning", ["\n"]), Words("output_text", [" ", "\n"])])], Limits())
@example([Step([Words("reasoning", ["a"]), Words("output_text", ["\r", "\n\r\nb"])])], Limits())
@example([Step([Words("reasoning", ["\n\n"]), Words("output_text", ["\n\n", "b"])])], Limits())
@example([Step([], "stop")], Limits())
@example([Step([], "length")], Limits())
@example([Step([Words("output_text", [" ", "\n"])], "length")], Limits())
@example([Step([Words("reasoning", ["Hm."])], "length")], Limits())
@example([Step([Call("fine", "{}", "a")], "tool_call"), Step([], "stop")], Limits())
@example([Step([], "content_filter", "safety")], Limits())
@example([Step([], "content_filter")], Limits())
@example([Step([], None, reason="recitation")], Limits())
@example([Step([Words("output_text", ["a"])], "error", reason="SAFETY")], Limits())
def test_bubbles_are_maximal_and_complete(script: list[Step], limits: Limits) -> None:
    done = played(script, limits)
    said, reason = expected(script, limits)
    assert_bubbles(done, said, reason)


@QUICK
@given(steps(), LIMITS)
@example([Step([Words("reasoning", ["Hm."])], "content_filter")], Limits())
@example([Step([Words("reasoning", ["Hm."])], "stop")], Limits())
@example([Step([Words("reasoning", ["Hm."])], "length")], Limits())
@example(
    [Step([Words("output_text", ["One."]), Words("reasoning", ["Hm."]), Words("output_text", ["\nTwo."])])], Limits()
)
def test_hidden_reasoning_leaves_texts_apart(script: list[Step], limits: Limits) -> None:
    done = played(script, limits, Options(ignore_reasoning=True))
    said, reason = expected(script, limits, hidden=True)
    assert_bubbles(done, said, reason)
    whole = played(script, limits)
    assert stored_words(done) == stored_words(whole), "the stored conversation has the reasoning, too"
    if said and said[-1][0] == "output_text":
        assert done.run.result is not None
        assert done.run.result.text == said[-1][1]


def stored_words(done: Played) -> list[Said]:
    parts = [part for entry in done.entries for part in entry.message.parts]
    return [(part.part_kind, part.content) for part in parts if isinstance(part, TextPart | ThinkingPart)]


def assert_bubbles(done: Played, said: list[Said], reason: str) -> None:
    assert [shown(bubble) for bubble in done.bubbles] == said
    assert done.run.result is not None
    assert done.run.result.finish_reason == reason
    before = None
    for response in done.run.responses:
        joins = response.type == before and response.type in ("output_text", "reasoning")
        assert response.is_type_switched is not joins
        assert response.role == ("tool" if response.type == "tool_call_result" else "assistant")
        assert response.content != ""
        before = response.type


@QUICK
@given(steps(), LIMITS)
def test_stored_text_equals_streamed_text(script: list[Step], limits: Limits) -> None:
    done = played(script, limits)
    kept: list[Said] = []
    for entry in done.entries:
        if isinstance(entry.message, ModelResponse):
            parts = [part for part in entry.message.parts if isinstance(part, TextPart | ThinkingPart)]
            assert all(part.content.strip() for part in parts)
            kinds = ["output_text" if isinstance(part, TextPart) else "reasoning" for part in parts]
            kept += spoken([Words(cast(Any, kind), [part.content]) for kind, part in zip(kinds, parts, strict=True)])
    said = [shown(bubble) for bubble in done.bubbles]
    assert kept == [one for one in said if one[0] in ("output_text", "reasoning")]
    "".join(text for _, text in kept).encode()  # raises if the text cannot be sent


@QUICK
@given(responses(), st.sampled_from(["", " ", "\n", " \n\n", "\t"]), st.booleans())
@example(ModelResponse([TextPart("It "), TextPart(" "), TextPart("rained"), TextPart("\n\n")]), "", True)
def test_finished_message_equals_its_stream(message: ModelResponse, seam: str, one_text: bool) -> None:
    """For any provider output `finalize` is idempotent, and `pieces_of` starts no piece with half a character."""
    kept = finalize(message, state="complete", seam=seam, one_text=one_text)
    assert finalize(kept, state="complete") == kept
    live, stamp, bubbles = StreamDecoder(seam, one_text=one_text), BubbleMarker(), list[TurnBubble]()
    for index, part in enumerate(message.parts):
        fold_responses(bubbles, map(stamp, live.feed(PartStartEvent(index=index, part=part))))
    again = list[TurnBubble]()
    fold_responses(again, map(BubbleMarker(), pieces_of(kept)))
    words = [shown(bubble) for bubble in again if bubble.first.type != "tool_call"]
    assert [shown(bubble) for bubble in bubbles] == words


# --- law 3 ------------------------------------------------------------------------------------------------------------


def shown_live(done: Played, stored: ConversationTurn) -> ShownTurn:
    """Return the last view of the page while the run was live. The model of the turn is the stored one."""
    run = done.run
    assert run.result is not None
    return render_turn(replace(stored, bubbles=done.bubbles, note=run.result.note, reasoning=run.reasoning))


@QUICK
@given(steps(), LIMITS)
def test_reload_shows_what_streamed(script: list[Step], limits: Limits) -> None:
    done = played(script, limits)
    [turn] = to_turns(done.entries)
    assert (stored := render_turn(turn)) == shown_live(done, turn)
    begun = Counter(response.type for response in done.run.responses if response.is_type_switched)
    assert begun == Counter(bubble["kind"] for bubble in stored["bubbles"] if bubble["kind"] in begun)


@settings(QUICK, max_examples=examples(15))
@given(steps(), LIMITS)
def test_reload_from_file_shows_what_streamed(script: list[Step], limits: Limits) -> None:
    async def check() -> None:
        with TemporaryDirectory() as folder:
            store = await SqliteStore.open(Path(folder) / "history.db")
            done = await play_script(script, limits, store)
            await store.aclose()
            again = await SqliteStore.open(Path(folder) / "history.db")
            [conversation] = await again.list(OWNER)
            [turn] = to_turns(await again.history(conversation))
            await again.aclose()
            assert render_turn(turn) == shown_live(done, turn)

    asyncio.run(check())


# --- law 4 ------------------------------------------------------------------------------------------------------------


@QUICK
@given(steps(), LIMITS)
def test_every_call_has_one_result(script: list[Step], limits: Limits) -> None:
    done = played(script, limits)
    calls = [cast(Mapping[str, Any], r.content) for r in done.run.responses if r.type == "tool_call"]
    results = [cast(Mapping[str, Any], r.content) for r in done.run.responses if r.type == "tool_call_result"]
    ids = [call["id"] for call in calls]
    assert all(ids)
    assert len(set(ids)) == len(ids)
    assert Counter((call["id"], call["name"]) for call in calls) == Counter((r["id"], r["name"]) for r in results)
    played_calls = [call for step in script for call in made([one for one in step.items if isinstance(one, Call)])]
    by_id = {result["id"]: result for result in results}
    stopped = any(call["name"] == "stopper" for call in calls)
    for call, played_call in zip(calls, played_calls, strict=False):
        assert call["name"] == played_call.name
        if not stopped:
            assert by_id[call["id"]]["is_error"] is fails(played_call)
            if _plain(played_call.arguments) == "{}":  # the model reads the true reason
                assert REASONS.get(played_call.name, "") in by_id[call["id"]]["content"]


async def test_parallel_calls_overlap() -> None:
    met = [asyncio.Event(), asyncio.Event(), asyncio.Event()]

    async def meet(who: int) -> str:
        """Return when all callers are here."""
        met[who].set()
        await asyncio.gather(*(event.wait() for event in met))
        return f"met {who}"

    calls = [Call("meet", json.dumps({"who": who}), f"id{who}") for who in range(3)]
    agent = Agent(FakeConnection([Step(calls, "tool_call")]), tools=[meet], limits=Limits(tool_seconds=5))
    run = agent.run("go")
    results = [cast(Mapping[str, Any], r.content) async for r in run if r.type == "tool_call_result"]
    assert {result["id"]: result["content"] for result in results} == {f"id{n}": f"met {n}" for n in range(3)}


async def test_result_is_emitted_as_its_tool_ends() -> None:
    first_seen = asyncio.Event()

    async def quick() -> str:
        return "quick"

    async def patient() -> str:
        await first_seen.wait()
        return "patient"

    calls = [Call("patient", "{}", "1"), Call("quick", "{}", "2")]
    agent = Agent(FakeConnection([Step(calls, "tool_call")]), tools=[quick, patient], limits=Limits(tool_seconds=5))
    order: list[str] = []
    async for response in agent.run("go"):
        if response.type == "tool_call_result":
            order.append(cast(Mapping[str, Any], response.content)["name"])
            first_seen.set()
    assert order == ["quick", "patient"]


def finishing_in(order: Sequence[int]) -> list[Any]:
    """Return two tools, one of which needs approval. The calls of each end in this order of their numbers."""
    ended: list[int] = []
    changed = asyncio.Condition()

    async def finish(number: int, before: Sequence[int]) -> str:
        """Wait for the calls that end before this one."""
        async with changed:
            await changed.wait_for(lambda: set(before) <= set(ended))
            ended.append(number)
            changed.notify_all()
        return f"result {number}"

    async def free(number: int, others: list[int]) -> str:
        return await finish(number, [one for one in order[: order.index(number)] if one in others])

    @tool(needs_approval=True)
    async def careful(number: int, others: list[int]) -> str:
        return await finish(number, [one for one in order[: order.index(number)] if one in others])

    return [free, careful]


@QUICK
@given(st.permutations(range(4)), st.sets(st.integers(0, 3)), st.sets(st.integers(0, 3)))
@example([3, 2, 1, 0], set(), set())
@example([3, 2, 1, 0], {0, 2}, {2})
def test_results_have_the_order_of_their_calls(order: list[int], asked: set[int], refused: set[int]) -> None:
    """Whichever call ends first, also after a suspension: in the store, in requests, and on the page."""

    def call(number: int) -> Call:
        others = [one for one in range(4) if (one in asked) is (number in asked)]
        others = [one for one in others if one not in asked & refused]
        arguments = json.dumps({"number": number, "others": others})
        return Call("careful" if number in asked else "free", arguments, f"call{number}")

    async def check() -> None:
        connection, store = FakeConnection([Step([call(number) for number in range(4)], "tool_call")]), MemoryStore()
        agent = Agent(connection, tools=finishing_in(order), limits=Limits(tool_seconds=5))
        journal = StoreJournal(store, MediaStore(Path("nowhere")), Conversation(owner=OWNER), Omitted())
        run = agent.run("go", journal=journal)
        live: list[TurnBubble] = []
        fold_responses(live, [response async for response in run])
        if asked:
            assert run.result is not None
            reply = {f"call{one}": Refuse() if one in refused else Approve() for one in asked}
            run = agent.resume(run.result.suspension or "", reply, journal=journal)
            resumed: list[TurnBubble] = []
            fold_responses(resumed, [response async for response in run])
            live = [*join_bubbles(live, resumed)]
        ids = [f"call{number}" for number in range(4)]
        for messages in (connection.played.sent[-1], run.context.messages):
            assert [one["tool_call_id"] for one in to_openai(messages) if one["role"] == "tool"] == ids
        entries = await store.history(journal.conversation)
        for entry in entries:
            results = [part.tool_call_id for part in entry.message.parts if isinstance(part, ToolReturnPart)]
            assert results == sorted(results)
        [turn] = to_turns(entries)
        assert [(one.first.type, one.content) for one in turn.bubbles] == [
            (one.first.type, one.content) for one in live
        ]

    asyncio.run(check())


# --- law 5 ------------------------------------------------------------------------------------------------------------


@QUICK
@given(steps(), LIMITS)
def test_error_is_last_and_only_in_errors(script: list[Step], limits: Limits) -> None:
    done = played(script, limits)
    assert done.run.result is not None
    kinds = [response.type for response in done.run.responses]
    failed = done.run.result.finish_reason in ("error", "limit")
    assert kinds.count("error") == (1 if failed else 0)
    assert not failed or kinds[-1] == "error"
    last = done.entries[-1]
    assert last.note.ended == done.run.result.finish_reason
    assert all(entry.note.ended is None for entry in done.entries[:-1])
    assert isinstance(last.message, ModelResponse)
    whole = done.run.result.finish_reason in ("stop", "length", "content_filter")
    assert (last.message.state == "complete") is whole


@QUICK
@given(steps(), LIMITS, st.booleans())
@example([Step([], "stop")], Limits(), False)
@example([Step([], "length")], Limits(), False)
@example([Step([Call("fine", "{}", "a")], "tool_call"), Step([], "stop")], Limits(), False)
@example([Step([Words("reasoning", ["Hm."])], "length")], Limits(), True)
def test_no_run_ends_without_a_word(script: list[Step], limits: Limits, hidden: bool) -> None:
    """The last step of a run that nobody stopped ends with a response: what the model said, or an error."""
    done = played(script, limits, Options(ignore_reasoning=hidden))
    assert done.run.result is not None
    if done.run.result.finish_reason != "cancelled":
        assert done.run.responses
        assert done.run.responses[-1].type not in ("tool_call", "tool_call_result")


# --- law 6 ------------------------------------------------------------------------------------------------------------


def wired(messages: Sequence[ModelMessage]) -> list[str]:
    """Return the checked messages for a provider, one JSON text each."""
    out = to_openai(prepare_messages(messages, "Be brief."))
    assert_accepted(out)
    return [json.dumps(message) for message in out]


@QUICK
@given(steps(), LIMITS)
def test_history_is_valid_after_any_ending_or_crash(script: list[Step], limits: Limits) -> None:
    done = played(script, limits)
    stored = [entry.message for entry in done.entries]
    for kept in range(len(stored) + 1):  # a crash keeps a prefix of the written messages
        wired([*stored[:kept], hello()])
    for sent in done.connection.played.sent:
        assert_accepted(to_openai(sent))
    context = list(done.run.context.messages)
    assert _same(repair(context), context)
    assert to_openai(context) == to_openai(repair(stored))


def _same(one: Sequence[object], other: Sequence[object]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


@QUICK
@given(steps(), LIMITS, steps())
def test_next_run_extends_what_was_sent(script: list[Step], limits: Limits, more: list[Step]) -> None:
    async def check() -> None:
        store = MemoryStore()
        first = await play_script(script, limits, store)
        second = await play_script([Step([Words("output_text", ["Yes."])])], Limits(), store, first, "Still there?")
        assert second.run.result is not None
        assert (second.run.result.finish_reason, second.run.result.text) == ("stop", "Yes.")
        [sent] = second.connection.played.sent
        before = [json.dumps(message) for message in to_openai(sent)]
        for request in first.connection.played.sent:
            earlier = [json.dumps(message) for message in to_openai(request)]
            assert before[: len(earlier)] == earlier

    asyncio.run(check())


FOREIGN = conversations(8).map(one_prompt_each)


@QUICK
@given(FOREIGN)
def test_repair_is_idempotent(messages: list[ModelMessage]) -> None:
    mended = repair(messages)
    assert _same(repair(mended), mended)
    assert prepare_messages(mended) == prepare_messages(messages)
    wired([*messages, hello()])


@QUICK
@given(FOREIGN, st.integers(0, 8))
def test_earlier_messages_keep_their_bytes(messages: list[ModelMessage], turn: int) -> None:
    history = messages[:turn] or messages
    before = wired(history)
    after = wired([*history, hello(), ModelResponse([TextPart("Yes.")]), hello()])
    assert after[: len(before)] == before


@pytest.mark.parametrize(
    "parts",
    [
        [UserPromptPart("wait"), ToolReturnPart("f", "1", tool_call_id="a")],
        [ToolReturnPart("f", "1", tool_call_id="a"), ToolReturnPart("f", "2", tool_call_id="a")],
        [ToolReturnPart("f", "1", tool_call_id="nobody")],
        [ToolReturnPart("g", "2", tool_call_id="b"), ToolReturnPart("f", "1", tool_call_id="a")],
        [ToolReturnPart("g", "2", tool_call_id="b"), UserPromptPart("wait")],
    ],
    ids=["results-first", "one-result-a-call", "no-orphans", "order-of-calls", "missing-in-its-place"],
)
def test_results_follow_their_calls(parts: list[Any]) -> None:
    calls = ModelResponse([ToolCallPart("f", "{}", tool_call_id="a"), ToolCallPart("g", "{}", tool_call_id="b")])
    doubled = ModelResponse([*calls.parts, ToolCallPart("f", "{}", tool_call_id="a")])
    for response in (calls, doubled):
        mended = repair([hello(), response, ModelRequest(parts)])
        assert _same(repair(mended), mended)
        answers = [part.tool_call_id for part in mended[2].parts if hasattr(part, "tool_call_id")]
        assert answers == ["a", "b"]
        assert not any(isinstance(part, UserPromptPart) for part in mended[2].parts[:2])


# --- context window ---------------------------------------------------------------------------------------------------

SIZES = st.lists(st.integers(0, 400), min_size=1, max_size=12)


def conversation(sizes: Sequence[int]) -> list[ModelMessage]:
    """Return one turn for each size: a prompt, a call, its result, an answer."""
    out: list[ModelMessage] = []
    for number, size in enumerate(sizes):
        call = ToolCallPart("f", "{}", tool_call_id=f"c{number}")
        out += [hello("x" * size), ModelResponse([call])]
        out += [ModelRequest([ToolReturnPart("f", "y" * size, tool_call_id=f"c{number}")])]
        out += [ModelResponse([TextPart("z" * size)])]
    return out


@QUICK
@given(SIZES, st.integers(50, 1000))
def test_newest_whole_turns_are_kept(sizes: list[int], budget: int) -> None:
    messages = conversation(sizes)
    kept = keep_newest(messages, budget)
    assert kept, "the newest turn was dropped"
    assert _same(kept, messages[len(messages) - len(kept) :])
    assert len(kept) % 4 == 0
    assert_accepted(to_openai(prepare_messages(kept)))
    cost = [size // 3 * 3 for size in sizes]
    if len(kept) > 4:
        assert sum(cost[len(sizes) - len(kept) // 4 :]) <= budget
    if sum(cost) <= budget:
        assert len(kept) == len(messages)
    starts: list[int] = []
    for count in range(1, len(sizes) + 1):
        part = messages[: 4 * count]
        starts.append((len(part) - len(keep_newest(part, budget))) // 4)
    assert starts == sorted(starts), "a dropped turn came back"


def test_turns_are_dropped_in_blocks() -> None:
    moves: list[int] = []
    for count in range(1, 60):
        messages = conversation([30] * count)
        moves.append(len(messages) - len(keep_newest(messages, 600)))
    assert len(set(moves)) < 8 < max(moves) // 4


# --- everything over HTTP ---------------------------------------------------------------------------------------------


SERVERS: list[Running] = []
"""The server of this module's tests. A fixture's value would be printed with each failing example."""


@pytest.fixture(scope="module", autouse=True)
def _server(server: Running) -> Iterator[None]:
    SERVERS.append(server)
    yield
    SERVERS.clear()


DELTAS = st.lists(st.builds(Words, st.sampled_from(["output_text", "reasoning"]), chunks()), max_size=4)
TYPED_CALLS = st.lists(
    st.tuples(
        st.sampled_from(["fine", "plain", "broken", "typed", "no_such_tool"]), st.sampled_from(["{}", '{"x": 3}'])
    ),
    max_size=3,
)


def over_the_wire(words: Sequence[Words]) -> list[Words]:
    """Join neighbours of one kind and drop empty deltas, because Chat Completions has no parts."""
    out: list[Words] = []
    for part in words:
        if part.text and out and out[-1].kind == part.kind:
            out[-1] = Words(part.kind, [*out[-1].chunks, *part.chunks])
        elif part.text:
            out.append(part)
    return out


def deltas(words: Sequence[Words], *more: dict[str, Any]) -> str:
    names = {"output_text": "content", "reasoning": "reasoning"}
    return "!json " + json.dumps([*({names[part.kind]: chunk} for part in words for chunk in part.chunks), *more])


@settings(QUICK, max_examples=examples(40))
@given(DELTAS, TYPED_CALLS, DELTAS, st.sampled_from(["stop", "length", "cut", "error-event", "reset", "stop-it"]))
def test_page_shows_the_same_live_and_reloaded(
    first: list[Words], calls: list[tuple[str, str]], last: list[Words], ending: str
) -> None:
    """Check laws 1 to 6 together: a real server, the real provider and the page's real conversations."""
    [server] = SERVERS
    script = ""
    if calls:
        script = f"{deltas(first)} !tools {' '.join(f'{name} {arguments}' for name, arguments in calls)} "
    finish = {"stop": ({"finish": "stop"},), "length": ({"finish": "length"},), "stop-it": ({"wait": 60},)}
    script += deltas(last, *finish.get(ending, ()))
    script += f" !{ending} 0" if ending not in finish else ""

    async def check() -> None:
        models: Any = FakeLocalModels(served=(ServedModel(QWEN3, Endpoint(server.base_url)),))
        options = Settings(local=LocalSettings(cache_dir=Path("nowhere")), retries=0)
        page = build_conversations(options, MemoryStore(), MediaStore(Path("nowhere")), models, _tools())
        seen = len(server.journal())
        live = await page.send(
            Visitor(owner=OWNER), None, {"text": script}, Choices(tools=True, system_message="Be brief.")
        )
        conversation, run = live.conversation_id, live.run
        if ending == "stop-it":
            requests = seen + (2 if calls else 1)
            await asyncio.to_thread(server.wait_for, lambda lines: len(lines) >= requests)
            wanted = sum(len(text) for kind, text in spoken(over_the_wire(last)))
            await _until(run, lambda: sum(_length(r) for r in _after_results(run)) >= wanted)
            await page.running.stop([conversation], OWNER)
        views = [view async for view in watch(page, OWNER, conversation)]
        await run
        await asyncio.sleep(0)
        reloaded = await view_of(page, OWNER, conversation)
        assert views[-1].turns == reloaded.turns
        bubbles: list[TurnBubble] = []
        fold_responses(bubbles, run.responses)
        said: list[Said] = [*spoken(over_the_wire(first))] if calls else []
        said += [("tool_call", name) for name, _ in calls] + [("tool_call_result", name) for name, _ in calls]
        said += spoken(over_the_wire(last))
        assert [shown(bubble) for bubble in bubbles if bubble.first.type != "error"] == said
        reasons = {"stop": "stop", "length": "length"} if [*spoken(over_the_wire(last))] else {}  # else it is empty
        reasons |= {"stop-it": "cancelled"}
        assert run.result is not None
        assert run.result.finish_reason == reasons.get(ending, "error")
        again = await page.send(
            Visitor(owner=OWNER), conversation, {"text": "!text Yes."}, Choices(system_message="Be brief.")
        )
        assert (await again.run).text == "Yes."
        await page.aclose()
        bodies = [line["body"]["messages"] for line in server.journal()[seen:]]
        assert len(bodies) == (3 if calls else 2)
        for body in bodies:
            assert_accepted(body)
        for before, after in pairwise(bodies):
            assert [json.dumps(m) for m in after[: len(before)]] == [json.dumps(m) for m in before]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http, "READ_INTERVAL_SECONDS", 0.0)
        patch.setattr("agent.web.chat.answers.UPDATE_SECONDS", 0.001)
        asyncio.run(check())


def _tools() -> list[Any]:
    return [tool(one) if not hasattr(one, "definition") else one for one in scripted_tools(lambda: None)]


def _length(response: Any) -> int:
    return len(response.content) if isinstance(response.content, str) else 0


def _after_results(run: Run) -> list[Any]:
    at = max((n for n, r in enumerate(run.responses) if r.type == "tool_call_result"), default=-1)
    return run.responses[at + 1 :]


async def _until(run: Run, holds: Callable[[], bool]) -> None:
    while not holds() and not run.done:
        await run.wait_for_update(len(run.responses), timeout=5)
