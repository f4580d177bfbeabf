"""An unfinished answer that the model continues: the request, the joined text, and what is refused."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart

from agent import Agent, Context, Endpoint, Run, connect
from agent.errors import InputError
from agent.files.store import MediaStore
from agent.history import Conversation, Entry
from agent.history.memory import MemoryStore
from agent.messages.openai import to_openai
from agent.messages.repair import prepare_messages, unfinished_text
from agent.models.catalog import load_catalog
from agent.providers.discovery import discover
from agent.web.chat.journal import Omitted, StoreJournal
from agent.web.chat.transcript import to_turns
from tests.support.fakes import SPEC, Act, FakeConnection, Step, Words
from tests.support.models import QWEN3
from tests.support.script_language import token
from tests.support.scripted_runs import QUICK, chunks
from tests.support.scripted_server import Running

CONTINUING = replace(QWEN3, prefill=True)


@pytest.fixture
async def agent(server: Running) -> AsyncIterator[Agent]:
    """An agent with a model that continues its own text."""
    async with Agent(connect(CONTINUING, Endpoint(server.base_url)), system_message="Be brief.") as agent:
        yield agent


def text(run: Run) -> str:
    return "".join(str(response.content) for response in run.responses if response.type == "output_text")


async def test_request_ends_with_own_text(agent: Agent, server: Running) -> None:
    first = await agent.ask("!reasoning Hm. !length 5", reasoning=True)
    assert first.finish_reason == "length"
    second = await agent.continue_answer(first.context, reasoning=True)
    body = server.journal()[-1]["body"]
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}  # its reasoning is over
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant"]
    assert body["messages"][-1]["content"] == first.text.rstrip() != first.text
    assert body["messages"][-1]["reasoning"] == "Hm."
    assert first.text + second.text == "".join(map(token, range(10)))


@pytest.mark.parametrize("tools", ["native", "none"])
async def test_only_native_tools_are_offered_again(server: Running, tools: str) -> None:
    def clock() -> str:
        """The time."""
        return "22:00"

    spec = replace(CONTINUING, tools=tools)
    async with Agent(connect(spec, Endpoint(server.base_url)), tools=[clock]) as agent:
        cut = await Agent(agent.connection).ask("!length 5")
        rest = await agent.continue_answer(cut.context)
    body = server.journal()[-1]["body"]
    assert ("tools" in body) is (tools == "native")
    assert "response_format" not in body
    assert rest.text == "".join(map(token, range(5, 10)))


async def test_text_after_tool_result_is_continued(agent: Agent, server: Running) -> None:
    def clock() -> str:
        """The time."""
        return "22:00"

    with_clock = agent.with_tools(*Agent(agent.connection, tools=[clock]).tools.values())
    cut = await with_clock.ask("!tool clock !length 3")
    rest = await with_clock.continue_answer(cut.context)
    sent = server.journal()[-1]["body"]["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool", "assistant"]
    assert cut.text + rest.text == "".join(map(token, range(6)))


async def test_what_cannot_be_continued_is_refused(agent: Agent, server: Running) -> None:
    whole = await agent.ask("!text Whole.")
    thoughts = await agent.ask('!json [{"reasoning": "First I add."}, {"finish": "length"}]')
    for context in (whole.context, thoughts.context, Context()):
        with pytest.raises(InputError, match="does not end with an unfinished text"):
            agent.continue_answer(context)
    cut = await agent.ask("!length 5")
    for spec in (QWEN3, replace(CONTINUING, always_reasons=True)):
        with pytest.raises(InputError, match="cannot continue a text"):
            Agent(connect(spec, Endpoint(server.base_url))).continue_answer(cut.context)


async def test_complete_text_is_continued_with_nothing() -> None:
    steps = [Step([Words("output_text", ["Whole."])], "length"), Step([], "stop"), Step([], "length")]
    agent = Agent(FakeConnection(steps, replace(SPEC, prefill=True)))
    cut = await agent.ask("Hello")
    rest = await agent.continue_answer(cut.context)
    assert (rest.finish_reason, rest.text, rest.note.detail) == ("stop", "", "")
    assert (await agent.continue_answer(cut.context)).finish_reason == "error"


async def test_only_some_servers_continue_a_text(server: Running) -> None:
    specs = load_catalog().models.values()
    assert {spec.provider for spec in specs if spec.continues} == {"vllm"}
    assert {id_ for id_, facts in load_catalog().assumed.items() if facts.get("prefill")} == {"vllm", "llama.cpp"}
    assert not any(spec.continues for spec in specs if spec.always_reasons)
    (found,) = await discover(Endpoint(server.base_url))
    assert found.continues


# --- laws -----------------------------------------------------------------------------------------------------------


ENDINGS = st.sampled_from([None, "cancel", "fail"])
MORE = st.lists(st.builds(Words, st.sampled_from(["output_text", "output_text", "reasoning"]), chunks()), max_size=3)


async def continue_twice(first: Words, end: str | None, second: list[Words], third: list[Words]) -> None:
    steps = [
        Step([first, *([Act(end)] if end == "cancel" or end == "fail" else [])], "length"),
        Step(second, "length"),
        Step(third, "stop"),
    ]
    connection = FakeConnection(steps, replace(SPEC, prefill=True))
    store, agent = MemoryStore(), Agent(connection, system_message="Be brief.")
    journal = StoreJournal(store, MediaStore(Path("nowhere")), Conversation(owner="ann"), Omitted())
    run = agent.run("Hello", journal=journal)
    connection.played.cancel = run.cancel
    await run
    runs = [run]
    while unfinished_text(run.context.messages) and len(runs) < 3:
        run = agent.continue_answer(run.context, journal=journal)
        await run
        runs.append(run)
        check_request(connection.played.sent[-1], runs)
    entries = await store.history(journal.conversation)
    check_stored(entries, runs)


def check_request(sent: list[ModelMessage], runs: list[Run]) -> None:
    """The model gets one answer. It ends with the text so far, without white space at the end."""
    assert [type(message).__name__ for message in sent] == ["ModelRequest", "ModelResponse"]
    part = sent[-1].parts[-1]
    assert isinstance(part, TextPart)
    assert part.content == part.content.rstrip()
    assert part.content
    said = "".join(text(run) for run in runs[:-1])
    assert said.rstrip().endswith(part.content)


def check_stored(entries: list[Entry], runs: list[Run]) -> None:
    """The stored turn has the text of all runs, in one bubble unless something came in between, as the next request."""
    [turn] = to_turns(entries)
    shown = [bubble for bubble in turn.bubbles if bubble.first.type != "error"]
    assert "".join(bubble.text for bubble in shown if bubble.first.type == "output_text") == "".join(map(text, runs))
    assert all(one.first.type != other.first.type for one, other in pairwise(shown))
    [answer] = [one for one in prepare_messages([entry.message for entry in entries]) if isinstance(one, ModelResponse)]
    if len(shown) == 1 and shown[0].first.type == "output_text" and shown[0].text.strip():
        assert to_openai([answer])[0]["content"] == shown[0].text


@QUICK
@given(st.builds(Words, st.just("output_text"), chunks()), ENDINGS, MORE, MORE)
@example(
    Words("output_text", [""]), "fail", [Words("reasoning", ["  indented"])], []
)  # a failure before any text is retried
def test_continued_answer_is_one_text(first: Words, end: str | None, second: list[Words], third: list[Words]) -> None:
    asyncio.run(continue_twice(first, end, second, third))
