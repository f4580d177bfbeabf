"""A run that waits for people: its question, the answer as the call's result, and that it is resumed only once.

Uses the scripted server. The second process is a real one.
"""

import asyncio
import json
import logging
import re
import string
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from itsdangerous.encoding import base64_decode, base64_encode
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from agent import Agent, Context, Endpoint, InputError, Limits, Run, RunResult, connect, tool
from agent.errors import ConfigError, SuspensionError
from agent.files.store import MediaStore
from agent.history import Conversation, Entry
from agent.history.memory import MemoryStore
from agent.limits import BudgetUsed
from agent.messages.openai import to_openai
from agent.messages.repair import prepare_messages, repair, unanswered_calls
from agent.responses import ToolResultContent
from agent.suspension import seals as seals_module
from agent.suspension.ledger import MemoryLedger, SqliteLedger
from agent.suspension.postgres_ledger import PostgresLedger
from agent.suspension.redis_ledger import RedisLedger
from agent.suspension.seals import Seals, canonical, keys_of, ledger_of, signed
from agent.suspension.suspended_run import Approve, Pending, Refuse, Suspension
from agent.tools.function_tools import ask_user
from agent.web.chat.journal import Omitted, StoreJournal
from tests.support.message_rules import assert_accepted
from tests.support.models import QWEN3
from tests.support.scripted_server import Running
from tests.support.strategies import conversations
from tests.tiers import examples

KEYS = {"k2": "the-second-secret-is-long", "k1": "the-first-secret-is-longer"}
PAID: list[int] = []


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pay somebody."""
    PAID.append(amount)
    return f"paid {amount}"


@tool
async def look(x: int = 1) -> str:
    """Look."""
    return f"seen {x}"


@tool
async def waits() -> None:
    """Wait for ever."""
    await asyncio.get_running_loop().create_future()


@pytest.fixture
async def agent(server: Running) -> AsyncIterator[Agent]:
    PAID.clear()
    async with Agent(connect(QWEN3, Endpoint(server.base_url)), tools=[ask_user, pay, look, waits]) as agent:
        yield agent


def other(agent: Agent, *tools: Any, limits: Limits | None = None, **more: Any) -> Agent:
    """Return an agent with the same connection."""
    return Agent(agent.connection, tools=tools or (ask_user, pay, look, waits), limits=limits, **more)


def sent(server: Running) -> list[dict[str, Any]]:
    """Return the checked messages of the last request."""
    messages = server.journal()[-1]["body"]["messages"]
    assert_accepted(messages)
    return messages


def results(result: RunResult) -> dict[str, str]:
    """Return the results in the conversation, by tool name."""
    parts = [part for message in result.context.messages for part in message.parts]
    return {part.tool_name: str(part.content) for part in parts if isinstance(part, ToolReturnPart)}


ASK = 'ask_user {"question": "Which table?", "choices": ["monthly", "daily"]}'
PAY = 'pay {"amount": 3}'


# --- suspending and resuming ------------------------------------------------------------------------------------------


async def test_question_suspends_and_answer_is_its_result(agent: Agent, server: Running) -> None:
    run = agent.run(f"!text Hm. !tool {ASK} !text Thanks.")
    result = await run
    assert (result.finish_reason, result.text, result.note.detail) == ("suspended", "Hm.", "Which table?")
    assert [response.type for response in run.responses] == ["output_text", "tool_call"]
    [pending] = result.pending
    assert (pending.kind, pending.name, pending.question) == ("question", "ask_user", "Which table?")
    assert pending.choices == ("monthly", "daily")
    assert result.suspension is not None

    resumed = agent.resume(result.suspension, "the monthly one")
    again = await resumed
    assert resumed.id != run.id
    assert (again.finish_reason, again.text, again.suspension) == ("stop", "Thanks.", None)
    assert [response.type for response in resumed.responses] == ["tool_call_result", "output_text"]
    assert resumed.responses[0].content == {
        "id": pending.call_id,
        "name": "ask_user",
        "content": "the monthly one",
        "is_error": False,
    }
    assert again.context.session_id == result.context.session_id
    assert [message["role"] for message in sent(server)] == ["user", "assistant", "tool"]


@pytest.mark.parametrize(
    ("answer", "paid", "says", "failed"),
    [
        (Approve(), [3], "paid 3", False),
        (Approve({"amount": 2}), [2], 'paid 2\n\n[The user changed the arguments to {"amount": 2}.]', False),
        (Refuse(), [], "The user refused this call.", True),
        (Refuse("too dear"), [], "The user refused this call. The reason given: too dear", True),
    ],
    ids=["approved", "changed", "refused", "refused-because"],
)
async def test_approval_or_refusal_is_the_call_result(
    agent: Agent, server: Running, answer: Any, paid: list[int], says: str, failed: bool
) -> None:
    result = await agent.ask(f"!tool {PAY} !text Done.")
    assert (result.finish_reason, PAID) == ("suspended", [])
    [pending] = result.pending
    assert (pending.kind, pending.name, pending.arguments) == ("approval", "pay", {"amount": 3})
    resumed = agent.resume(result.suspension or "", {pending.call_id: answer})
    again = await resumed
    assert (again.text, PAID, results(again)["pay"]) == ("Done.", paid, says)
    content = cast(ToolResultContent, resumed.responses[0].content)
    assert (content["is_error"], content.get("is_refused", False)) == (failed, failed)
    call = next(part for m in again.context.messages for part in m.parts if isinstance(part, ToolCallPart))
    assert call.args_as_dict() == {"amount": 3}, "the model's call has changed"
    sent(server)


async def test_other_calls_run_and_keep_their_results(agent: Agent, server: Running) -> None:
    run = agent.run(f"!tools {ASK} look {{}} {PAY} !text Done.")
    result = await run
    assert [response.type for response in run.responses] == ["tool_call"] * 3 + ["tool_call_result"]
    assert [one.name for one in result.pending] == ["ask_user", "pay"]
    ids = [one.call_id for one in result.pending]
    again = await agent.resume(result.suspension or "", {ids[1]: Approve(), ids[0]: "monthly"})
    assert results(again) == {"look": "seen 1", "ask_user": "monthly", "pay": "paid 3"}
    assert [message["role"] for message in sent(server)] == ["user", "assistant", "tool", "tool", "tool"]


@pytest.mark.parametrize("calls", [ASK, f"{ASK} look {{}}", f"look {{}} {PAY}"])
async def test_conversation_continues_without_resuming(agent: Agent, server: Running, calls: str) -> None:
    run = agent.run(f"!tools {calls}")
    result = await run
    run.cancel()
    assert (result.finish_reason, run.cancel_reason) == ("suspended", None), "an ended run has no cancel reason"
    assert run.context == result.context
    again = await agent.ask("!text Never mind.", context=Context.from_json(result.context.to_json()))
    assert again.text == "Never mind."
    assert "interrupted" in " ".join(str(m.get("content")) for m in sent(server) if m["role"] == "tool")
    dropped = agent.resume(result.suspension or "", {one.call_id: Refuse() for one in result.pending})
    assert (await dropped).finish_reason == "stop"
    sent(server)


async def test_resumed_run_can_suspend_again(agent: Agent) -> None:
    result = await agent.ask(f"!tool {ASK} !tool {PAY} !text Done.")
    result = await agent.resume(result.suspension or "", "daily")
    assert [one.kind for one in result.pending] == ["approval"]
    result = await agent.resume(result.suspension or "", Approve())
    assert (result.text, PAID) == ("Done.", [3])


async def test_options_and_budget_survive_suspension(agent: Agent, server: Running) -> None:
    careful = other(agent, limits=Limits(steps=3))
    looks = ' !tool look {"x": 2} !tool look {"x": 3}'
    result = await careful.run(f"!tool look {{}} !tool {ASK}{looks}", temperature=0.25)
    assert result.note.detail == "Which table?"
    at = len(server.journal())
    result = await careful.resume(result.suspension or "", "daily")
    assert (result.finish_reason, len(server.journal()) - at) == ("suspended", 1), "two of the three steps were used"
    assert server.journal()[-1]["body"]["temperature"] == 0.25
    assert result.note.detail == "Stopped after 3 steps: the model kept calling tools. Go on?"


# --- invalid use ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ("monthly", "2 answers are wanted"),
        ({}, "no answer is given to"),
        (lambda a, b: {a: "monthly"}, "no answer is given to"),
        (lambda a, b: {a: "monthly", b: Approve(), "c": "x"}, "nothing waits for an answer to 'c'"),
        (lambda a, b: {a: " \n", b: Approve()}, "is empty"),
        (lambda a, b: {a: Approve(), b: Approve()}, "is a question"),
        (lambda a, b: {a: "monthly", b: "yes"}, "is an approval"),
        (lambda a, b: {a: "monthly", b: None}, "is an approval"),
        (lambda a, b: {a: "monthly", b: Approve({"amount": "much"})}, "do not fit the tool 'pay'"),
    ],
)
async def test_bad_reply_is_refused_before_use(agent: Agent, server: Running, reply: Any, says: str) -> None:
    result = await agent.ask(f"!tools {ASK} {PAY} !text Done.")
    ids = [one.call_id for one in result.pending]
    seen = len(server.journal())
    with pytest.raises(InputError, match=says):
        await agent.resume(result.suspension or "", reply(*ids) if callable(reply) else reply)
    assert (len(server.journal()), PAID) == (seen, [])
    again = await agent.resume(result.suspension or "", {ids[0]: "monthly", ids[1]: Approve()})
    assert again.text == "Done."


async def test_changed_agent_is_refused_unless_allowed(agent: Agent, server: Running) -> None:
    result = await agent.ask(f"!tool {ASK} !text Done.")

    async def pay(amount: float) -> None: ...

    async def extra() -> None: ...

    changed = other(agent, ask_user, tool(needs_approval=True)(pay), extra, waits)
    with pytest.raises(SuspensionError, match="'extra' is new, 'look' is gone, 'pay' takes other arguments") as refused:
        await changed.resume(result.suspension or "", "daily")
    assert refused.value.reason == "tools"
    renamed = Agent(connect(replace(QWEN3, id="vllm:other"), Endpoint(server.base_url)), tools=[ask_user])
    with pytest.raises(SuspensionError, match="vllm:Qwen/Qwen3-8B, not vllm:other") as refused:
        renamed.resume(result.suspension or "", "daily")
    assert refused.value.reason == "model"
    assert (await renamed.resume(result.suspension or "", "daily", changed_ok=True)).text == "Done."
    await renamed.aclose()


async def test_refused_resumption_leaves_journal_and_raises(agent: Agent) -> None:
    result = await agent.ask(f"!tool {ASK} !text Done.")
    await agent.resume(result.suspension or "", "daily")
    conversation = Conversation(owner="alice")
    journal = StoreJournal(MemoryStore(), MediaStore(Path("nowhere")), conversation, Omitted())
    again = agent.resume(result.suspension or "", "daily", journal=journal)
    with pytest.raises(SuspensionError):
        _ = [response async for response in again]
    assert again.result is not None
    assert (again.result.finish_reason, journal.conversation) == ("error", conversation)
    assert isinstance(again.refused, SuspensionError)
    journal.first_write.cancel()


# --- from a store -----------------------------------------------------------------------------------------------------


async def stored(agent: Agent, store: MemoryStore, script: str) -> tuple[StoreJournal, RunResult]:
    journal = StoreJournal(store, MediaStore(Path("nowhere")), Conversation(owner="alice"), Omitted())
    return journal, await agent.ask(script, journal=journal)


@pytest.mark.parametrize("calls", [ASK, f"look {{}} {ASK}", f"{PAY} {ASK} look {{}}"])
async def test_suspended_run_resumes_from_store(agent: Agent, server: Running, calls: str) -> None:
    store = MemoryStore()
    journal, result = await stored(agent, store, f"!tools {calls} !text Done.")
    entries = await store.history(journal.conversation)
    assert [entry.note.ended for entry in entries] == [None] * (len(entries) - 1) + ["suspended"]
    assert entries[-1].note.run_id == result.note.run_id
    context = Context(session_id="s", messages=tuple(entry.message for entry in entries))
    suspension = Suspension.of(context.session_id, context.messages)
    assert suspension.pending == result.pending
    reply = {one.call_id: Approve() if one.kind == "approval" else "daily" for one in suspension.pending}
    again = await agent.resume(suspension, reply, journal=journal)
    assert again.text == "Done."
    after: list[Entry] = await store.history(journal.conversation)
    assert [type(entry.message) for entry in after[len(entries) :]] == [ModelRequest, ModelResponse]
    assert [entry.note.ended for entry in after[len(entries) :]] == [None, "stop"]
    context = again.context
    assert to_openai(repair([entry.message for entry in after])) == to_openai(context.messages)
    assert (await agent.ask("!text Yes.", context=context)).text == "Yes."
    sent(server)


def test_only_pending_calls_can_be_resumed() -> None:
    call = ModelResponse([ToolCallPart("pay", "{}", tool_call_id="a")])
    for messages in (
        (),
        (ModelRequest([UserPromptPart("hi")]),),
        (call, ModelRequest([ToolReturnPart("pay", "x", tool_call_id="a")])),
        (call, ModelRequest([UserPromptPart("Never mind.")])),
        (replace(call, state="interrupted"),),
    ):
        with pytest.raises(InputError, match="nothing is suspended"):
            Suspension.of("s", messages)


# --- results in several requests --------------------------------------------------------------------------------------


def _split(messages: list[ModelMessage], cut: Callable[[int], bool]) -> list[ModelMessage]:
    """Return the same conversation with result requests split, as after resumptions."""
    out: list[ModelMessage] = []
    for message in messages:
        if isinstance(message, ModelRequest) and all(isinstance(part, ToolReturnPart) for part in message.parts):
            bunch: list[Any] = []
            for number, part in enumerate(message.parts):
                bunch.append(part)
                if cut(number):
                    out.append(replace(message, parts=bunch))
                    bunch = []
            if bunch:
                out.append(replace(message, parts=bunch))
        else:
            out.append(message)
    return out


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(conversations(8), st.lists(st.booleans(), min_size=1, max_size=5))
def test_split_results_are_sent_as_one_request(messages: list[ModelMessage], cuts: list[bool]) -> None:
    whole = repair([ModelRequest([UserPromptPart("hi")]), *messages])
    parted = _split(whole, lambda number: cuts[number % len(cuts)])
    mended = repair(parted)
    assert [list(one.parts) for one in mended] == [list(one.parts) for one in whole]
    assert repair(mended) == mended
    assert to_openai(prepare_messages(parted)) == to_openai(prepare_messages(whole))
    assert unanswered_calls(whole)[1] == []


def test_late_result_does_not_overtake_prompts() -> None:
    calls = ModelResponse([ToolCallPart("f", "{}", tool_call_id="a"), ToolCallPart("f", "{}", tool_call_id="b")])
    first = ModelRequest([ToolReturnPart("f", "1", tool_call_id="a")])
    late = ModelRequest([ToolReturnPart("f", "2", tool_call_id="b")])
    said = ModelRequest([UserPromptPart("And?")])
    mended = repair([calls, first, said, late])
    assert [[getattr(part, "content", "") for part in one.parts] for one in mended[1:]] == [
        ["1", "The call was interrupted and has no result."],
        ["And?"],
    ]


# --- the seal ---------------------------------------------------------------------------------------------------------


def sample(**more: Any) -> Suspension:
    messages = (
        ModelRequest([UserPromptPart("Pay \u00e9\U0001f600 half \ud83d")]),
        ModelResponse([TextPart("Well."), ToolCallPart("pay", '{"amount": 3}', tool_call_id="a")], model_name="m"),
    )
    pending = (Pending(call_id="a", kind="approval", name="pay", arguments={"amount": 3}),)
    spent = BudgetUsed(steps=2, seconds=1.5, tokens=9, dollars=0.1, trail=("x",), known=("y",), errors={"f": ("z", 1)})
    given: dict[str, Any] = {
        "run_id": "r",
        "session_id": "s",
        "model": "m",
        "tools": {"pay": "d"},
        "options": {"temperature": 0.5},
        "messages": messages,
        "pending": pending,
        "spent": spent,
    }
    return Suspension(**{**given, **more})


SEALS = Seals(keys=KEYS, owner="alice", ledger=MemoryLedger())
SEALED = SEALS.seal(sample())


def reason(text: str, seals: Seals = SEALS) -> str:
    with pytest.raises(SuspensionError) as refused:
        seals.open(text)
    assert str(refused.value).endswith(".")
    return refused.value.reason


def record(sealed: str) -> Any:
    return json.loads(base64_decode(sealed.split(".")[2]))


def leaves(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, Mapping | list) and value:
        for key in value if isinstance(value, Mapping) else range(len(value)):
            yield from leaves(value[key], (*at, key))
    else:
        yield at


def flipped(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "x"
        case _:
            return "x"


def forged(change: Callable[[Any], None]) -> str:
    """Return the sealed run with a changed record, the right length and the old signature."""
    name, _, _, signature = SEALED.split(".")
    changed = record(SEALED)
    change(changed)
    body = base64_encode(json.dumps(changed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)).decode()
    return f"{name}.{len(body)}.{body}.{signature}"


def test_seal_returns_what_was_sealed() -> None:
    opened = SEALS.open(SEALED)
    assert (opened.owner, opened.pending, opened.spent) == ("alice", sample().pending, sample().spent)
    assert opened.expires_at is not None
    assert timedelta(hours=24) <= opened.expires_at - opened.created_at < timedelta(hours=24, minutes=1)
    assert canonical(opened) == canonical(SEALS.open(signed(canonical(opened), "k2", KEYS["k2"])))
    assert opened.messages[1].parts[1] == sample().messages[1].parts[1]
    assert set(SEALED) <= {*string.ascii_letters, *string.digits, *"-_."}
    assert forged(lambda _: None) == SEALED, "`forged` has a bug"


def test_no_leaf_of_record_can_be_changed() -> None:
    for path in leaves(record(SEALED)):

        def change(value: Any, path: tuple[Any, ...] = path) -> None:
            for key in path[:-1]:
                value = value[key]
            value[path[-1]] = flipped(value[path[-1]])

        assert reason(forged(change)) == "tampered", path


@pytest.mark.parametrize("at", [0, 2, 3, len(SEALED) - 44, -1], ids=["key", "dot", "length", "last-dot", "spare-bits"])
def test_every_variant_of_a_character_is_detected(at: int) -> None:
    for character in {*string.ascii_letters, *string.digits, *"-_."} - {SEALED[at]}:
        changed = list(SEALED)
        changed[at] = character
        assert reason("".join(changed)) in ("tampered", "truncated", "key")


@settings(max_examples=examples(100))
@given(st.integers(1, len(SEALED) - 1))
def test_truncated_seal_is_reported_as_such(length: int) -> None:
    assert reason(SEALED[:length]) == "truncated"


@pytest.mark.parametrize(
    "text", ["", "{}", "x y", "...", "k2.1.a.b.c", "\u00e9.1.a.b", "k2.\u0661.a.b", "k2.-1.a.b", f"k2.{'9' * 5000}.a.b"]
)
def test_non_seal_is_refused_with_reason(text: str) -> None:
    assert reason(text) in ("tampered", "truncated")


def test_each_refusal_names_its_reason() -> None:
    assert reason(SEALED, replace(SEALS, owner="bob")) == "owner"
    assert reason(SEALED, replace(SEALS, keys={"k9": KEYS["k1"]})) == "key"
    assert reason(SEALED, replace(SEALS, keys={"k2": "another secret entirely"})) == "tampered"
    assert reason(replace(SEALS, seconds=1e-9).seal(sample())) == "expired"
    assert reason(SEALED + "A") == "tampered"
    assert reason(SEALS.seal(sample(schema=0))) == "schema"
    assert reason(SEALS.seal(sample(schema=2))) == "schema"
    newer = {**record(SEALED), "files": ["a"]}
    assert reason(signed(json.dumps(newer).encode(), "k2", KEYS["k2"])) == "schema"
    assert reason(signed(b'{"schema": 1}', "k2", KEYS["k2"])) == "schema"


@pytest.mark.parametrize(
    ("holder", "path"),
    [
        (lambda plain: plain, "tone"),
        (lambda plain: plain["spent"], "spent.tone"),
        (lambda plain: plain["pending"][0], "pending[0].tone"),
        (lambda plain: plain["messages"][1]["parts"][1], "messages[1].parts[1].tone"),
        (lambda plain: plain["messages"][0], "messages[0].tone"),
    ],
    ids=["record", "spent", "pending", "part", "message"],
)
def test_unknown_field_of_record_is_named(holder: Callable[[Any], dict[str, Any]], path: str) -> None:
    newer = record(SEALED)
    holder(newer)["tone"] = "dry"
    with pytest.raises(SuspensionError, match=re.escape(repr(path))) as refused:
        SEALS.open(signed(json.dumps(newer).encode(), "k2", KEYS["k2"]))
    assert refused.value.reason == "schema"


def test_free_fields_of_record_are_kept() -> None:
    newer = record(SEALED)
    newer["options"]["tone"] = newer["pending"][0]["arguments"]["tone"] = newer["tools"]["tone"] = "dry"
    opened = SEALS.open(signed(json.dumps(newer).encode(), "k2", KEYS["k2"]))
    assert (opened.options["tone"], opened.pending[0].arguments["tone"], opened.tools["tone"]) == ("dry",) * 3


def test_old_keys_open_and_first_key_signs() -> None:
    rotated = replace(SEALS, keys={"k3": "the-third-secret-is-longest", **KEYS})
    assert rotated.open(SEALED).owner == "alice"
    assert rotated.seal(sample()).startswith("k3.")
    assert reason(rotated.seal(sample())) == "key"


def test_permanent_seal_has_no_expiry() -> None:
    for_ever = replace(SEALS, seconds=None)
    assert for_ever.open(for_ever.seal(sample())).expires_at is None


def test_keys_come_from_environment() -> None:
    text = "new:0123456789abcdef, old:fedcba9876543210 "
    assert list(keys_of({"SUSPENSION_KEYS": text}).items()) == [
        ("new", "0123456789abcdef"),
        ("old", "fedcba9876543210"),
    ]
    assert keys_of({}) == keys_of({"SUSPENSION_KEYS": " "})
    [(name, secret)] = keys_of({}).items()
    assert re.fullmatch("process-[0-9a-f]{8}", name)
    assert len(secret) > 40
    for wrong in ("secret", "a:short", "a b:0123456789abcdef", ":0123456789abcdef", f"{text},new:0123456789abcdef"):
        with pytest.raises(ConfigError, match="SUSPENSION_KEYS: key") as refused:
            keys_of({"SUSPENSION_KEYS": wrong})
        assert "0123456789abcdef" not in str(refused.value)
    assert "0123456789abcdef" not in repr(Seals(keys=keys_of({"SUSPENSION_KEYS": text})))


def test_ledger_comes_from_environment(tmp_path: Path) -> None:
    assert ledger_of({}) is ledger_of({"SUSPENSION_LEDGER": " "}) is Seals().ledger
    for address in (f"sqlite:///{tmp_path}/used.db", f"sqlite:{tmp_path}/used.db"):
        assert isinstance(ledger_of({"SUSPENSION_LEDGER": address}), SqliteLedger)
    for address in ("redis://localhost:6379/0", "rediss://localhost", "unix:///run/redis.sock"):
        assert isinstance(ledger_of({"SUSPENSION_LEDGER": address}), RedisLedger)
    for address in ("postgresql://ann@localhost:5432/chat", "postgres://localhost/chat"):
        assert isinstance(ledger_of({"SUSPENSION_LEDGER": address}), PostgresLedger)
    for wrong in (
        "sqlite",
        "sqlite:",
        "sqlite:///",
        "file:folder",
        "redis",
        "memory:",
        "mysql://localhost",
        str(tmp_path),
    ):
        with pytest.raises(ConfigError, match="SUSPENSION_LEDGER is sqlite:///path"):
            ledger_of({"SUSPENSION_LEDGER": wrong})


async def test_keys_without_shared_ledger_warn_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seals_module._warn_of_second_use.cache_clear()
    for quiet in (
        Seals(),
        Seals(keys=KEYS, ledger=SqliteLedger(tmp_path / "used")),
        Seals(keys=KEYS, ledger=MemoryLedger()),
    ):
        await quiet.use(quiet.open(quiet.seal(sample())))
    assert caplog.records == []
    shared = Seals(keys=KEYS)
    for _ in range(2):
        await shared.use(shared.open(shared.seal(sample())))
    [warning] = caplog.records
    assert (warning.levelno, "SUSPENSION_LEDGER" in warning.getMessage()) == (logging.WARNING, True)


async def test_record_of_newer_version_is_not_resumed(agent: Agent) -> None:
    with pytest.raises(SuspensionError) as refused:
        agent.resume(sample(schema=2), {"a": Approve()})
    assert refused.value.reason == "schema"


async def waited(run: Run) -> RunResult:
    return await run


async def test_one_of_many_resumptions_succeeds(agent: Agent) -> None:
    result = await agent.ask(f"!tool {PAY} !text Done.")
    outcomes = await asyncio.gather(
        *(asyncio.create_task(waited(agent.resume(result.suspension or "", Approve()))) for _ in range(8)),
        return_exceptions=True,
    )
    assert PAID == [3]
    assert sorted(one.reason for one in outcomes if isinstance(one, SuspensionError)) == ["used"] * 7
