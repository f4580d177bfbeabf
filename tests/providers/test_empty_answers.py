"""Answers that end without anything to show: each dialect ends the run with one error that says so."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from agent import Agent, Endpoint, Limits, ProviderError, connect
from agent.models.catalog import load_catalog
from tests.support import dialects
from tests.support.dialect_server import Playing, Reply
from tests.support.replies import anthropic_messages as messages
from tests.support.replies import chat_completions as chat
from tests.support.replies import google_generate_content as generate
from tests.support.replies import openai_responses as responses

EMPTY = "The model returned an empty answer."
NO_ROOM = "The answer reached its maximum length before any text."

running_server, server = dialects.running_server, dialects.server


@dataclass(frozen=True)
class Dialect:
    """A model that speaks the dialect, its address, a reply with a call of `weather`, and empty replies by name."""

    model: str
    path: str
    call: Reply
    stop: Mapping[str, Reply]
    length: Mapping[str, Reply]


DIALECTS = {
    "chat": Dialect(
        "huggingface:Qwen/Qwen3-8B",
        "/v1",
        chat.reply(chat.ROLE, chat.calls(chat.piece("{}", id="call_1", name="weather")), *chat.ending("tool_calls")),
        {
            "nothing": chat.reply(chat.ROLE, *chat.ending()),
            "white space": chat.reply(chat.ROLE, chat.chunk(content=" \n"), *chat.ending()),
        },
        {"nothing": chat.reply(chat.ROLE, *chat.ending("length"))},
    ),
    "responses": Dialect(
        "openai:gpt-6-luna",
        "/v1",
        responses.reply(responses.created(), responses.call("{}"), responses.completed()),
        {
            "nothing": responses.reply(responses.created(), responses.completed()),
            "an empty text": responses.reply(responses.created(), responses.text(""), responses.completed()),
        },
        {
            "nothing": responses.reply(responses.created(), responses.incomplete("max_output_tokens")),
            "sealed reasoning": responses.reply(
                responses.created(), responses.reasoning(), responses.incomplete("max_output_tokens")
            ),
        },
    ),
    "messages": Dialect(
        "anthropic:claude-sonnet-5-5",
        "",
        messages.reply(messages.begin(), messages.call(0, "toolu_1", "{}"), messages.CALLS),
        {"nothing": messages.reply(messages.begin(), messages.ends("end_turn", 1))},
        {
            "nothing": messages.reply(messages.begin(), messages.ends("max_tokens", 1)),
            "half a call": messages.reply(
                messages.begin(), messages.call(0, "toolu_1", '{"ci'), messages.ends("max_tokens")
            ),
        },
    ),
    "generate": Dialect(
        "google:gemini-3.8-flash",
        "",
        generate.reply(generate.chunk(generate.call(id_="call_1")), generate.end()),
        {"an empty text": generate.reply(generate.end())},
        {"an empty text": generate.reply(generate.end("MAX_TOKENS"))},
    ),
}
CASES = [
    pytest.param(dialect, empty, sentence, id=f"{name}, {reason}: {how}")
    for name, dialect in DIALECTS.items()
    for reason, replies, sentence in (("stop", dialect.stop, EMPTY), ("length", dialect.length, NO_ROOM))
    for how, empty in replies.items()
]


def weather(city: str = "Nowhere") -> str:
    """The weather of a city."""
    return f"Sunny in {city}."


async def ask(server: Playing, dialect: Dialect, replies: Sequence[Reply]) -> tuple[Any, list[tuple[str, Any]]]:
    """Return the result of a run and its bubbles."""
    server.play(*replies)
    connection = connect(load_catalog().find(dialect.model), Endpoint(server.url + dialect.path, "a-key"))
    async with Agent(connection, tools=[weather], limits=Limits(retries=2)) as agent:
        run = agent.run("Hello")
        result = await run
    return result, dialects.bubbles(run.responses)


@pytest.mark.parametrize(("dialect", "empty", "sentence"), CASES)
async def test_empty_answer_is_one_error(server: Playing, dialect: Dialect, empty: Reply, sentence: str) -> None:
    result, seen = await ask(server, dialect, [empty])
    assert seen == [("error", sentence)]
    assert (result.finish_reason, result.why, len(server.requests)) == ("error", sentence, 1)
    with pytest.raises(ProviderError) as raised:
        result.checked()
    assert raised.value.kind == "empty"
    assert result.usage["input_tokens"] > 0, "an empty answer costs what the server says"


@pytest.mark.parametrize(("dialect", "empty", "sentence"), CASES)
async def test_empty_answer_after_results_is_error(
    server: Playing, dialect: Dialect, empty: Reply, sentence: str
) -> None:
    result, seen = await ask(server, dialect, [dialect.call, empty])
    assert [kind for kind, _ in seen] == ["tool_call", "tool_call_result", "error"]
    assert (seen[-1][1], result.finish_reason) == (sentence, "error")
    again = [one["role"] for one in result.to_input_list()]
    assert again[:3] == ["user", "assistant", "tool"], "the conversation keeps the call and its result"
