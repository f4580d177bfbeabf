"""The options of a run: each one is checked before any request, and the error lists the valid values."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast, get_type_hints

import pytest

from agent import (
    Agent,
    Chat,
    Endpoint,
    InputError,
    Limits,
    Options,
    ProviderError,
    RunOptions,
    SuspensionError,
    connect,
)
from agent.models.catalog import load_catalog
from agent.tools.function_tools import ask_user
from tests.support.dialect_server import Playing, Reply, playing
from tests.support.dialects import DIALECTS, Dialect
from tests.support.fakes import Call, FakeConnection, Step
from tests.support.models import QWEN3
from tests.support.scripted_server import Running

WRONG = [
    *(("reasoning", value) for value in ("off", "on", "no", "False", "super", "", 0, 1, 0.5, ["low"])),
    *(("ignore_reasoning", value) for value in (None, 0, "no")),
    *(("temperature", value) for value in ("hot", "0.5", -0.1, 2.1, math.nan, math.inf, True, [1])),
    *(("max_tokens", value) for value in (-5, 0, 1.5, "100", True)),
    *(("top_p", value) for value in (-0.1, 1.1, "1", True)),
    *(("seed", value) for value in (-1, 1.5, "1", True)),
    *(("stop", value) for value in ("", [], [""], [1], 3)),
    *(("timeout", value) for value in (0, -1, "3", True, math.inf)),
    *(("cache", value) for value in ("1h", 1)),
    *(("extra_body", value) for value in ("a", [("a", 1)], {1: 2})),
    *(("headers", value) for value in ("a", {"X-Key": 1}, {"X Key": "a"}, {"X-Key": "a\nb"}, {"X-Key": "\u00e9"})),
    ("temprature", 1),
]
KNOWN = {
    "reasoning": "Known values: True, False, None, none, minimal, low, medium, high, xhigh, max.",
    "ignore_reasoning": "Known values: True, False.",
    "temperature": "Known values: 0 - 2, None.",
    "max_tokens": "Known values: 1, 2, 3, ..., None.",
    "top_p": "Known values: 0 - 1, None.",
    "seed": "Known values: 0, 1, 2, ..., None.",
    "stop": "Known values: a text, a list of texts, None.",
    "timeout": "Known values: seconds above 0, None.",
    "cache": "Known values: True, False, None.",
    "extra_body": "Known values: a dict with texts as keys, None.",
    "headers": "Known values: a dict of texts, None.",
    "temprature": "Known options: reasoning, ignore_reasoning, temperature, max_tokens, top_p, seed, stop, timeout, "
    "cache, extra_body, headers.",
}


@pytest.mark.parametrize(("name", "value"), WRONG, ids=repr)
async def test_wrong_option_is_refused_before_any_request(server: Running, name: str, value: Any) -> None:
    before = len(server.journal())
    async with Agent(connect(QWEN3, Endpoint(server.base_url)), tools=[ask_user]) as agent:
        waiting = agent.seals.open((await agent.ask('!tool ask_user {"question": "Which?"}')).suspension or "")
        before += 1
        asked: dict[str, Any] = {name: value}
        with pytest.raises(InputError) as refused:
            agent.run("Hello", **asked)
        with pytest.raises(InputError):
            await agent.ask("Hello", **asked)
        if name in KNOWN and name != "temprature":
            with pytest.raises(InputError):
                agent.run("Hello", options=Options(**asked))
        with pytest.raises(InputError):
            agent.resume(replace(waiting, options=asked), "daily")
    said = str(refused.value)
    assert (repr(name if name == "temprature" else value) in said) == (name != "headers")
    assert name in said
    assert said.endswith(KNOWN[name])
    assert len(server.journal()) == before


def test_temperature_keeps_to_the_dialect() -> None:
    spec = replace(load_catalog().find("claude-haiku-4-5", "anthropic"), temperature=True)
    agent = Agent(connect(spec, Endpoint("http://127.0.0.1:9", "key")))
    with pytest.raises(InputError, match=r"temperature cannot be 1\.5\. Known values: 0 - 1"):
        agent.run("Hello", temperature=1.5)
    agent.run("Hello", temperature=1)


async def test_temperature_that_cannot_be_set_is_noted() -> None:
    connection = FakeConnection([])
    connection.spec = replace(connection.spec, temperature=False)
    result = await Agent(connection).ask("Hello", temperature=0.5, top_p=0.5)
    assert result.notes == (
        "The temperature of Parts cannot be set; it was asked without.",
        "The top_p of Parts cannot be set; it was asked without.",
    )
    assert connection.played.asked == [{}]


async def test_retired_model_names_its_replacement() -> None:
    connection = FakeConnection([])
    connection.spec = replace(connection.spec, retired=True, replaced_by="gpt-6-luna")
    result = await Agent(connection).ask("Hello")
    assert result.notes == ("Parts was shut down. gpt-6-luna replaces it. It can still be tried.",)


def test_keywords_are_the_fields() -> None:
    keywords, fields = get_type_hints(RunOptions), get_type_hints(Options)
    assert {name: keywords[name] for name in fields} == fields
    assert keywords.keys() - fields.keys() == {"options", "journal", "model", "tools"}


# --- what reaches the wire --------------------------------------------------------------------------------------------

GIVEN: dict[str, Any] = {
    "top_p": 0.5,
    "seed": 7,
    "stop": ["END"],
    "timeout": 90.5,
    "extra_body": {"service_tier": "flex"},
    "headers": {"X-Team": "blue"},
}
CHAT = {"top_p": ["top_p"], "seed": ["seed"], "stop": ["stop"], "extra_body": ["service_tier"]}
ON_THE_WIRE: dict[str, dict[str, list[str]]] = {
    # the place of each option in the body; an API without an option has no place
    "vLLM": CHAT,
    "llama.cpp": CHAT,
    "Chat Completions of OpenAI": CHAT,
    "Responses": {"top_p": ["top_p"], "extra_body": ["service_tier"]},
    "Claude": {"top_p": ["top_p"], "stop": ["stop_sequences"], "extra_body": ["service_tier"]},
    "Gemini": {
        "top_p": ["generationConfig", "topP"],
        "seed": ["generationConfig", "seed"],
        "stop": ["generationConfig", "stopSequences"],
    },
}
OLDER = {"Claude": "claude-haiku-4-5", "Chat Completions of OpenAI": "gpt-4o"}
"""Models that take top_p: newer ones of these dialects are asked without."""
ANY_BODY = ("timeout", "headers")
"""The options that are in no body. Each dialect has them."""


@pytest.fixture
def playing_server() -> Iterator[Playing]:
    with playing() as server:
        yield server


def dialect(name: str) -> Dialect:
    found, older = DIALECTS[name], OLDER.get(name)
    return found._replace(spec=replace(found.spec, name=older or found.spec.name, temperature=True))


@pytest.mark.parametrize("option", GIVEN)
@pytest.mark.parametrize("name", ON_THE_WIRE)
async def test_option_reaches_the_wire_or_is_refused(name: str, option: str, playing_server: Playing) -> None:
    playing_server.play(DIALECTS[name].answer("Hi"))
    connection = dialect(name).connect(playing_server)
    async with Agent(connection) as agent:
        if option not in ON_THE_WIRE[name] and option not in ANY_BODY:
            with pytest.raises(InputError, match=rf'^(OpenAI|Anthropic|Google)\'s .* API has no "{option}"$'):
                agent.run("Hello", **{option: GIVEN[option]})
            assert playing_server.requests == []
            return
        result = await agent.ask("Hello", **{option: GIVEN[option]})
    assert (result.text, result.notes) == ("Hi", ())
    [request] = playing_server.requests
    if option == "headers":
        assert request.headers["x-team"] == "blue"
    elif option != "timeout":
        found = request.json
        for key in ON_THE_WIRE[name][option]:
            found = found[key]
        assert found == (GIVEN[option]["service_tier"] if option == "extra_body" else GIVEN[option])


@pytest.mark.parametrize("name", ON_THE_WIRE)
async def test_cache_is_set_where_it_has_a_price(name: str, playing_server: Playing) -> None:
    playing_server.play(DIALECTS[name].answer("Hi"), DIALECTS[name].answer("Hi"))
    found, marks = DIALECTS[name], {"anthropic": "cache_control", "openai": "prompt_cache_options"}
    spec = replace(found.spec, name="gpt-6-luna" if found.spec.provider == "openai" else found.spec.name)
    async with Agent(found._replace(spec=spec).connect(playing_server), system_message="Be brief.") as agent:
        if spec.provider not in marks:
            with pytest.raises(InputError, match='has no "cache"'):
                agent.run("Hello", cache=True)
            return
        for cache in (True, False):
            await agent.ask("Hello", cache=cache)
    cached, plain = [json.dumps(request.json) for request in playing_server.requests]
    assert marks[spec.provider] in cached
    assert marks[spec.provider] not in plain


@pytest.mark.parametrize("name", ON_THE_WIRE)
async def test_timeout_is_the_longest_silence(name: str, playing_server: Playing) -> None:
    playing_server.play(Reply(end="stall"))
    connection = dialect(name).connect(playing_server)
    async with Agent(connection, limits=Limits(retries=0)) as agent:
        result = await agent.ask("Hello", timeout=0.05)
    assert result.finish_reason == "error"
    assert isinstance(result.failure, ProviderError)
    assert result.failure.kind == "connection"


async def test_body_of_a_run_keeps_the_switch_of_the_template(playing_server: Playing) -> None:
    playing_server.play(DIALECTS["vLLM"].answer("Hi"))
    async with Agent(connect(QWEN3, Endpoint(f"{playing_server.url}/v1"))) as agent:
        await agent.ask("Hello", reasoning=False, extra_body={"top_k": 3}, stop="END")
    [body] = [request.json for request in playing_server.requests]
    assert (body["top_k"], body["chat_template_kwargs"], body["stop"]) == (3, {"enable_thinking": False}, ["END"])


# --- the model and the tools of one run -------------------------------------------------------------------------------


def look() -> str:
    """Look around."""
    return "Nothing."


async def test_run_can_have_its_own_model_and_tools() -> None:
    own, other = FakeConnection([]), FakeConnection([Step([Call("look", "{}", "a")])])
    other.spec = replace(own.spec, id="fake:other")
    agent = Agent(own, tools=[ask_user])
    assert (await agent.ask("Hello", model=other, tools=[look])).model == "fake:other"
    assert len(other.played.sent) == 2
    assert (await agent.ask("Hello")).model == "fake:parts"
    assert list(agent.tools) == ["ask_user"]


async def test_suspended_run_resumes_with_what_is_given_again() -> None:
    own, other = FakeConnection([]), FakeConnection([Step([Call("ask_user", '{"question": "Which?"}', "a")])])
    other.spec = replace(own.spec, id="fake:other")
    agent = Agent(own)
    how: dict[str, Any] = {"model": other, "tools": [ask_user], "headers": {"X-Key": "s3cret"}}
    waiting = await agent.ask("Hello", seed=7, **how)
    assert waiting.finish_reason == "suspended"
    assert "s3cret" not in repr(agent.seals.open(waiting.suspension or "").options)
    with pytest.raises(SuspensionError) as refused:
        agent.resume(waiting, "This.")
    assert refused.value.reason == "model"
    assert (await agent.resume(waiting, "This.", **how)).text == "done"
    assert other.played.asked[-1].get("seed") == 7
    assert other.played.asked[-1].get("extra_headers") == {"X-Key": "s3cret"}


def test_chat_resumes_with_the_model_of_the_run() -> None:
    own, other = FakeConnection([]), FakeConnection([Step([Call("ask_user", '{"question": "Which?"}', "a")])])
    other.spec = replace(own.spec, id="fake:other")
    with Chat(Agent(own)) as chat:
        assert chat.say("Hello", model=other, tools=[ask_user]).finish_reason == "suspended"
        assert "".join(str(one.content) for one in chat.resume("This.") if one.type == "output_text") == "done"
    assert own.played.sent == []


async def test_headers_reach_no_other_provider() -> None:
    own, other = FakeConnection([]), FakeConnection([])
    other.spec = replace(own.spec, id="other:parts", provider="other")
    for options in ({"headers": {"Authorization": "Bearer a"}}, {"extra_body": {"top_k": 3}}):
        name = next(iter(options))
        with pytest.raises(InputError, match=rf"^{name} belongs to one provider, and this run can ask fake, other$"):
            Agent([own, other]).run("Hello", **cast(Any, options))
