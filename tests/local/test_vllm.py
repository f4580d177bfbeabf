"""The provider and the run with a real vLLM server: what a visitor of the page would get."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai.settings import ModelSettings

from agent import Agent, Endpoint, ModelSpec, Options, connect
from agent.conformance import LAWS, examine_server
from agent.models.catalog import load_catalog
from agent.providers.chat_completions import ChatCompletionsConnection
from agent.providers.discovery import discover
from tests.support import vllm_server
from tests.support.vllm_server import CONTEXT_TOKENS, MARKS, VllmServer

pytestmark = MARKS
vllm = vllm_server.vllm


def spec(server: VllmServer, **more: Any) -> ModelSpec:
    given = {"context_tokens": server.context_tokens, **more}
    return ModelSpec(id=f"vllm:{server.model}", name=server.model, label=server.model, provider="vllm", **given)


def agent(server: VllmServer, **more: Any) -> Agent:
    return Agent(connect(spec(server), Endpoint(server.url, server.key)), **more)


def endless(server: VllmServer) -> Agent:
    """Return an agent whose model always continues to its length limit, because a stop needs a long answer."""
    return Agent(connect(spec(server, defaults=(("ignore_eos", True),)), Endpoint(server.url, server.key)))


class Forced(ChatCompletionsConnection):
    """A connection whose model must call a tool."""

    def settings(self, reasoning: bool | None) -> ModelSettings:
        return {**super().settings(reasoning), "tool_choice": "required", "temperature": 0}


async def test_server_describes_its_model(vllm: VllmServer) -> None:
    (found,) = await discover(Endpoint(vllm.url, vllm.key))
    assert (found.name, found.context_tokens) == (vllm.model, CONTEXT_TOKENS)


async def test_text_streams_with_usage_and_stops(vllm: VllmServer) -> None:
    async with agent(vllm) as one:
        run = one.run("What is the capital of France?", temperature=0, max_tokens=24)
        responses = [response async for response in run]
    result = run.result
    assert result is not None
    assert result.finish_reason in ("stop", "length")
    assert len(responses) > 1  # tokens that arrive together are one response
    assert "".join(str(response.content) for response in responses) == result.text
    timings = result.note.timings
    assert timings is not None
    assert not timings.estimated
    assert timings.input_tokens > 5 < timings.output_tokens


async def test_second_turn_knows_the_first(vllm: VllmServer) -> None:
    async with agent(vllm, system_message="Be brief.") as one:
        first = await one.ask("My name is Ada.", temperature=0, max_tokens=16)
        second = await one.ask("Hello again.", context=first.context, temperature=0, max_tokens=8)
    assert [item["role"] for item in second.to_input_list()] == ["system", "user", "assistant", "user", "assistant"]
    assert second.usage["input_tokens"] > first.usage["input_tokens"]


async def test_length_limit_is_reported(vllm: VllmServer) -> None:
    async with endless(vllm) as one:
        result = await one.ask("Count to a hundred.", max_tokens=5)
    assert result.finish_reason == "length"
    assert result.usage["output_tokens"] == 5


async def test_cut_answer_is_continued_in_its_own_words(vllm: VllmServer) -> None:
    """At temperature 0, an answer in two parts is the same text as in one."""
    async with Agent(connect(spec(vllm, prefill=True), Endpoint(vllm.url, vllm.key))) as one:
        for question in ("Write a long story about the sea.", "Count from one to twenty, one number on each line."):
            whole = await one.ask(question, temperature=0, max_tokens=48)
            for tokens in (7, 8, 9):
                cut = await one.ask(question, temperature=0, max_tokens=tokens)
                rest = await one.continue_answer(cut.context, temperature=0, max_tokens=24)
                assert rest.text
                assert whole.text.startswith((cut.text + rest.text)[: len(cut.text) + 20])
        last = (await one.ask("Thanks.", context=rest.context, max_tokens=4)).to_input_list()
    assert [item["content"] for item in last][1] == cut.text + rest.text


async def test_stop_frees_the_server(vllm: VllmServer) -> None:
    async with endless(vllm) as one:
        run = one.run("Write a very long story about the sea.", max_tokens=1500)
        run.start()
        await run.wait_for_update(3)
        assert vllm.running_requests() == 1
        run.cancel("user_request")
        result = await run
        vllm.wait_until_idle()  # 1500 tokens would take longer
    assert result.finish_reason == "cancelled"
    assert result.text


async def test_native_tool_call_with_strict_schema(vllm: VllmServer) -> None:
    """vLLM's own tool parser with `required` streams the call as deltas, and the emitted call is complete."""

    def weather(city: str) -> str:
        """The weather of a city."""
        return f"rain in {city}"

    connection = Forced(spec(vllm), Endpoint(vllm.url, vllm.key), load_catalog().providers["vllm"])
    async with Agent(connection, tools=[weather]) as one:
        run = one.run("What is the weather in Paris?", max_tokens=64)
        said = []
        async for response in run:
            said.append(response)
            if response.type == "tool_call_result":
                run.cancel()
    calls = [response.content for response in said if response.type == "tool_call"]
    results = [response.content for response in said if response.type == "tool_call_result"]
    assert [call["id"] for call in calls] == [result["id"] for result in results]
    assert calls[0]["name"] == "weather"


async def test_too_long_conversation_reports_numbers(vllm: VllmServer) -> None:
    async with agent(vllm) as one:
        result = await one.ask("word " * 4000, max_tokens=16)
    assert result.finish_reason == "error"
    assert "2,048" in result.note.detail
    assert "reads" in result.note.detail


@pytest.mark.parametrize(
    ("endpoint", "name", "sentence"),
    [("wrong key", None, "key was rejected"), ("right key", "no-such-model", "no model named 'no-such-model'")],
    ids=["wrong-key", "unknown-model"],
)
async def test_server_refusal_is_reported(vllm: VllmServer, endpoint: str, name: str | None, sentence: str) -> None:
    key = vllm.key if endpoint == "right key" else "sk-not-this-one"
    one = Agent(connect(replace(spec(vllm), name=name or vllm.model), Endpoint(vllm.url, key)))
    async with one:
        result = await one.run("Hello", options=Options(max_tokens=4))
    assert result.finish_reason == "error"
    assert sentence in result.note.detail
    assert "sk-not-this-one" not in result.note.detail


async def test_vllm_keeps_the_laws_of_streams(vllm: VllmServer) -> None:
    findings = await examine_server(Endpoint(vllm.url, vllm.key))
    assert {one.law: one.message for one in findings if one.state == "broken"} == {}
    shown = {one.law for one in findings if one.state == "ok"}
    assert {"events", "end", "finish", "usage", "cancel"} <= shown <= {*LAWS}
