"""Models that stand in: after which failures, in which order, and never once an answer has begun."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agent import Agent, Endpoint, Image, Limits, MissingKey, ModelSpec, connect
from agent.errors import LocalModelError, ProviderError
from agent.events import StepEnded
from agent.models.catalog import Price
from agent.tools.function_tools import ask_user
from tests.support.dialect_server import Playing, Reply, playing
from tests.support.dialects import DIALECTS, chat_answer
from tests.support.fakes import Act, Call, FakeConnection, Step, Words
from tests.support.media_files import random_png
from tests.support.models import QWEN3
from tests.support.replies import anthropic_messages, chat_completions
from tests.support.scripted_server import running

AT_ONCE = Limits(retries=0)
BUSY = Reply(status=503, body={"error": {"message": "busy"}})
WIRES = ("Responses", "vLLM", "Claude", "Gemini")


@pytest.fixture
def server() -> Iterator[Playing]:
    with playing() as server:
        yield server


@pytest.fixture
def other() -> Iterator[Playing]:
    with playing() as server:
        yield server


def named(name: str, **more: Any) -> ModelSpec:
    return replace(QWEN3, id=f"vllm:{name}", name=name, label=name.title(), **more)


def at(server: Playing, *names: str, **more: Any) -> list[Any]:
    """Return connections to models of these names, which the server tells apart by the name alone."""
    return [connect(named(name, **more), Endpoint(f"{server.url}/v1")) for name in names]


def asked(server: Playing) -> list[str]:
    return [request.json["model"] for request in server.requests]


def error(status: int, message: str, code: str | None = None, **headers: str) -> Reply:
    return Reply(status=status, body={"error": {"message": message, "code": code}}, headers=headers)


# --- after which failures ---------------------------------------------------------------------------------------------

UNAVAILABLE = {
    "429 after its waits": error(429, "slow down", **{"retry-after": "0"}),
    "a pause that is too long": error(429, "slow down", **{"retry-after": "900"}),
    "500": error(500, "oops"),
    "503": BUSY,
    "529": error(529, "overloaded"),
    "no such model": error(404, "The model `first` does not exist.", "model_not_found"),
    "a model that the key may not use": error(403, "no access to this model"),
    "used up quota": error(429, "You exceeded your current quota.", "insufficient_quota"),
    "a stream that breaks before its text": Reply(sse=[chat_completions.ROLE], end="reset"),
}
FINAL = {
    "a wrong key": error(401, "Incorrect API key provided."),
    "refused content": error(400, "flagged", "content_policy_violation"),
    "a refused request": error(400, "temperature is too high"),
    "a prompt that is too long": error(400, "maximum context length is 5 tokens", "context_length_exceeded"),
    "an empty answer": chat_completions.reply(chat_completions.ROLE, *chat_completions.ending()),
}


@pytest.mark.parametrize("reason", UNAVAILABLE)
async def test_next_model_answers_for_one_that_is_away(reason: str, server: Playing, other: Playing) -> None:
    tries = 2 if reason in ("429 after its waits",) else 1
    server.play(*[UNAVAILABLE[reason]] * tries)
    other.play(chat_answer("Hi"))
    async with Agent([*at(server, "first"), *at(other, "second")], limits=Limits(retries=tries - 1)) as agent:
        result = await agent.ask("Hello")
    assert (result.finish_reason, result.text, result.model) == ("stop", "Hi", "vllm:second")
    assert (len(server.requests), len(other.requests)) == (tries, 1)
    [note] = result.notes
    assert note.endswith(" Second was asked instead of First.")
    assert result.note.omitted == note


@pytest.mark.parametrize("reason", FINAL)
async def test_no_model_stands_in_for_a_refusal(reason: str, server: Playing) -> None:
    server.play(FINAL[reason])
    async with Agent(at(server, "first", "second"), limits=AT_ONCE) as agent:
        result = await agent.ask("Hello")
    assert (result.finish_reason, result.model, result.notes) == ("error", "vllm:first", ())
    assert asked(server) == ["first"]


@pytest.mark.parametrize("second", WIRES)
@pytest.mark.parametrize("first", WIRES)
async def test_each_dialect_stands_in_for_each(first: str, second: str, server: Playing, other: Playing) -> None:
    server.play(BUSY)
    other.play(DIALECTS[second].answer("Hi"))
    async with Agent([DIALECTS[first].connect(server), DIALECTS[second].connect(other)], limits=AT_ONCE) as agent:
        run = agent.run("Hello")
        result = await run
    assert (result.text, result.model) == ("Hi", DIALECTS[second].spec.id)
    assert "".join(str(one.content) for one in run.responses) == "Hi"
    assert result.usage["output_tokens"] > 0


# --- not once an answer has begun -------------------------------------------------------------------------------------


def cut_after(reply: Reply, word: str) -> Reply:
    """Return the reply up to the event with this word. Then the connection breaks."""
    end = next(number for number, event in enumerate(reply.sse, 1) if word in json.dumps(event, default=str))
    return replace(reply, sse=reply.sse[:end], end="reset")


@pytest.mark.parametrize("name", WIRES)
async def test_no_model_stands_in_after_the_first_text(name: str, server: Playing, other: Playing) -> None:
    server.play(cut_after(DIALECTS[name].answer("Half"), "Half"))
    async with Agent([DIALECTS[name].connect(server), *at(other, "second")], limits=AT_ONCE) as agent:
        result = await agent.ask("Hello")
    assert (result.finish_reason, result.text, result.model) == ("error", "Half", DIALECTS[name].spec.id)
    assert other.requests == []


@pytest.mark.parametrize(
    "begun", [Words("reasoning", ["Hm"]), Words("output_text", ["Hi"]), Call("look", '{"a": 1', "c")], ids=repr
)
async def test_nothing_that_has_begun_is_begun_again(begun: Any) -> None:
    first, second = FakeConnection([Step([begun, Act("fail")])]), FakeConnection([])
    second.spec = replace(second.spec, id="fake:second")
    result = await Agent([first, second], limits=AT_ONCE).ask("Hello")
    assert (result.finish_reason, result.model) == ("error", "fake:parts")
    assert second.played.sent == []


# --- order and errors -------------------------------------------------------------------------------------------------


async def test_models_are_asked_in_their_order(server: Playing) -> None:
    server.play(BUSY, BUSY, chat_answer("Hi"), chat_answer("Hi again"))
    async with Agent(at(server, "first", "second", "third", "fourth"), limits=AT_ONCE) as agent:
        run = agent.run("Hello")
        events = [event async for event in run.events()]
        assert (await agent.ask("Hello again")).model == "vllm:first"
    assert asked(server) == ["first", "second", "third", "first"]
    assert [one.failure is None for one in events if isinstance(one, StepEnded)] == [False, False, True]
    assert run.result is not None
    assert [note.partition(" soon. ")[2] for note in run.result.notes] == [
        "Second was asked instead of First.",
        "Third was asked instead of Second.",
    ]


async def test_last_error_is_reported_and_names_the_others(server: Playing) -> None:
    server.play(BUSY, BUSY, error(404, "The model `third` does not exist.", "model_not_found"))
    async with Agent(at(server, "first", "second", "third"), limits=AT_ONCE) as agent:
        result = await agent.ask("Hello")
    assert (result.finish_reason, result.model) == ("error", "vllm:third")
    assert result.why == (
        "The model server has no model named 'third'. Models that did not answer before: First, Second."
    )
    with pytest.raises(ProviderError, match="First, Second") as raised:
        result.checked()
    assert (raised.value.kind, raised.value.status) == ("unknown_model", 404)


async def test_key_that_is_missing_is_told_before_any_request(server: Playing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    with pytest.raises(MissingKey, match="ANTHROPIC_API_KEY"):
        Agent([*at(server, "first"), "anthropic:claude-sonnet-5-5"]).run("Hello")
    assert server.requests == []


@dataclass
class NeverReady(FakeConnection):
    """A model that is chosen later, and then is not there."""

    tried: list[str] = field(default_factory=list[str])

    async def ready(self) -> None:
        self.tried.append(self.spec.id)
        raise LocalModelError("No model could be started.")


@pytest.mark.parametrize("place", [0, 1])
async def test_model_that_cannot_be_started_is_passed_over(place: int, server: Playing) -> None:
    server.play(*[BUSY] * place, chat_answer("Hi"))
    models: list[Any] = at(server, "first", "second")[1 - place :]
    models.insert(place, absent := NeverReady([]))
    async with Agent(models, limits=AT_ONCE) as agent:
        result = await agent.ask("Hello")
    assert (result.text, result.model, absent.tried) == ("Hi", "vllm:second", ["fake:parts"])
    assert result.notes[-1] == "No model could be started. Second was asked instead of Parts."


async def test_auto_stands_in_for_a_hosted_model(server: Playing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
    server.play(BUSY)
    with running() as local:
        monkeypatch.setenv("VLLM_BASE_URL", local.base_url)
        async with Agent(["openai:gpt-6-luna", "auto"], limits=AT_ONCE) as agent:
            result = await agent.ask("!text Here.")
    assert (result.text, result.model) == ("Here.", "vllm:Qwen/Qwen3-8B")


async def test_model_that_cannot_see_does_not_stand_in(server: Playing) -> None:
    server.play(BUSY, chat_answer("A dot"))
    models = [*at(server, "first", image=True), *at(server, "blind", image=False), *at(server, "third", image=True)]
    async with Agent(models, limits=AT_ONCE) as agent:
        result = await agent.ask(["What is it?", Image.from_bytes(random_png())])
    assert (result.text, asked(server)) == ("A dot", ["first", "third"])
    assert "Blind was not asked, because it cannot take this question." in result.notes


# --- the rest of the run ----------------------------------------------------------------------------------------------


def look() -> str:
    """Look around."""
    return "Nothing."


def calls(name: str, arguments: str = "{}") -> Reply:
    call = chat_completions.calls(chat_completions.piece(arguments, id="c1", name=name))
    return chat_completions.reply(chat_completions.ROLE, call, *chat_completions.ending("tool_calls"))


async def test_run_stays_with_the_model_that_stood_in(server: Playing) -> None:
    server.play(BUSY, calls("look"), chat_answer("Done"))
    async with Agent(at(server, "first", "second"), tools=[look], limits=Limits(retries=0, steps=2)) as agent:
        result = await agent.ask("Hello")
    assert (result.finish_reason, result.text, asked(server)) == ("stop", "Done", ["first", "second", "second"])


async def test_each_step_costs_the_price_of_its_model(server: Playing) -> None:
    server.play(calls("look"), BUSY, chat_answer("Done"))
    first, second = Price(input=1.0, output=0.0), Price(input=0.0, output=1000.0)
    models = [*at(server, "first", price=first), *at(server, "second", price=second)]
    async with Agent(models, tools=[look], limits=Limits(retries=0, dollars=1.0)) as agent:
        result = await agent.ask("Hello")
    [one, other] = [message.usage for message in result.context.messages if message.kind == "response"]
    assert result.usage == {
        "input_tokens": one.input_tokens + other.input_tokens,
        "output_tokens": one.output_tokens + other.output_tokens,
    }
    assert result.cost == pytest.approx((one.input_tokens + 1000 * other.output_tokens) / 1e6)


async def test_limit_in_dollars_counts_all_models(server: Playing) -> None:
    server.play(BUSY, calls("look"), BUSY, calls("look"), chat_answer("Done"))
    free = Price(input=0.0, output=0.0)
    dear = Price(input=1e6, output=0.0)
    models = [*at(server, "first", price=free), *at(server, "dear", price=dear), *at(server, "third", price=free)]
    async with Agent(models, tools=[look], limits=Limits(retries=0, dollars=1.0, interactive=False)) as agent:
        result = await agent.ask("Hello")
    assert (result.finish_reason, asked(server)) == ("limit", ["first", "dear"])


@pytest.mark.parametrize("again", [False, True], ids=["same agent", "another agent"])
async def test_suspended_run_resumes_with_its_model(server: Playing, again: bool) -> None:
    server.play(BUSY, calls("ask_user", '{"question": "Which?"}'), BUSY, chat_answer("Done"))
    agent = Agent(at(server, "first", "second", "third"), tools=[ask_user], limits=AT_ONCE)
    waiting = await agent.ask("Hello")
    assert (waiting.finish_reason, waiting.model) == ("suspended", "vllm:second")
    if again:
        agent = Agent(at(server, "first", "second", "third"), tools=[ask_user], limits=AT_ONCE, seals=agent.seals)
    result = await agent.resume(waiting, "This.")
    assert (result.text, asked(server)) == ("Done", ["first", "second", "second", "third"])
    await agent.aclose()


async def test_stop_while_a_model_stands_in(server: Playing) -> None:
    server.play(BUSY, replace(cut_after(chat_answer("Half"), "Half"), end="stall"))
    async with Agent(at(server, "first", "second"), limits=AT_ONCE) as agent:
        run = agent.run("Hello")
        async for _ in run:
            run.cancel()
        result = run.result
    assert result is not None
    assert (result.finish_reason, result.text, result.model) == ("cancelled", "Half", "vllm:second")
    assert server.requests[-1].left.wait(60)


async def test_signatures_stay_with_their_provider(server: Playing, other: Playing) -> None:
    claude = anthropic_messages
    thoughts, call = claude.thinking(0, "Let me look.", signature="s1gned"), claude.call(1, "c1", "{}", name="look")
    server.play(claude.reply(claude.begin(), thoughts, call, claude.CALLS), BUSY)
    other.play(DIALECTS["Responses"].answer("Done"))
    models = [DIALECTS["Claude"].connect(server), DIALECTS["Responses"].connect(other)]
    async with Agent(models, tools=[look], limits=AT_ONCE) as agent:
        result = await agent.ask("Hello", reasoning=True)
    assert (result.finish_reason, result.text) == ("stop", "Done")
    assert b"s1gned" not in other.requests[0].raw
    assert "function_call_output" in [item.get("type") for item in other.requests[0].json["input"]]
    assert any("the reasoning of other models" in note for note in result.notes)
