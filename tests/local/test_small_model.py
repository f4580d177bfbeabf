"""The small model that answers if there is no better one, and the examples at the start of each of its requests."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from html import unescape
from typing import Any, cast

import pytest
from pydantic_ai.messages import ModelRequest, SystemPromptPart, UserPromptPart

from agent import Agent
from agent.i18n.translator import LANGUAGES, Translator
from agent.local.launch import launch_llama
from agent.models.weights import SMOLLM2, find
from agent.providers.chat_completions import ChatCompletionsConnection, with_examples
from agent.providers.connection import Endpoint, connect
from agent.settings import load_settings
from agent.web.chat.system_prompt import default_prompt
from agent.web.ui.components import examples
from bench.small_model import QUESTIONS
from tests.support.scripted_server import Config, running

EXAMPLES = SMOLLM2.spec.examples
SECRETS = ("Madrid", "Horse")
"""Words of the examples' answers."""


def test_examples_follow_system_prompt() -> None:
    asked = [ModelRequest([SystemPromptPart("Be kind."), UserPromptPart("Hello")])]
    sent = with_examples(asked, EXAMPLES)
    assert len(sent) == 2 + 2 * len(EXAMPLES)
    assert [part.content for part in sent[0].parts] == ["Be kind."]
    assert [part.content for one in sent[1:-1] for part in one.parts] == [text for pair in EXAMPLES for text in pair]
    assert [part.content for part in sent[-1].parts] == ["Hello"]
    assert len(asked[0].parts) == 2, "the given messages have changed"


async def test_only_the_model_sees_examples() -> None:
    with running(Config(models=("tiny",))) as server:
        spec = replace(SMOLLM2.spec, name="tiny")
        async with Agent(connect(spec, Endpoint(server.base_url)), system_message="Be kind.") as agent:
            first = await agent.ask("!text One.")
            second = await agent.ask("!text Two.", context=first.context)
        bodies: list[Any] = [one["body"]["messages"] for one in server.journal()]
    roles = ["user", "assistant"] * len(EXAMPLES)
    assert [one["role"] for one in bodies[0]] == ["system", *roles, "user"]
    assert [one["role"] for one in bodies[1]] == ["system", *roles, "user", "assistant", "user"]
    assert [one["content"] for one in bodies[0][1:-1]] == [text for pair in EXAMPLES for text in pair]
    assert bodies[0] == bodies[1][: len(bodies[0])], "the server's prompt cache needs the same start"
    for kept in (second.context.to_json(), str(second)):
        assert not [word for word in SECRETS if word in kept]
    assert len(second.context.messages) == 4
    assert not [word for word in SECRETS if word in first.text + second.text]


def starters(language: str) -> list[str]:
    """Return the messages of the examples that the page offers."""
    return [unescape(one) for one in re.findall('value="([^"]+)"', examples(SMOLLM2.spec, Translator(language)))]


@pytest.mark.parametrize("language", LANGUAGES)
def test_starters_are_measured_questions(language: str) -> None:
    assert len(starters(language)) == 4
    assert set(starters(language)) <= QUESTIONS.keys()


@pytest.fixture
async def small() -> AsyncIterator[Agent]:
    """The real model, called as the page calls it."""
    path = await find(SMOLLM2, load_settings().local.cache_dir)
    assert path is not None, "missing: run make setup"
    spec = SMOLLM2.spec
    child, endpoint, _ = await launch_llama(
        path, name=spec.name, context=spec.context_tokens, kv_bytes=SMOLLM2.kv_bytes, key="test", port=0
    )
    try:
        async with Agent(connect(spec, endpoint), system_message=default_prompt(load_settings(), spec)) as agent:
            yield agent
    finally:
        await child.aclose()


@pytest.mark.full
@pytest.mark.weights
async def test_each_starter_is_answered_right_five_times(small: Agent) -> None:
    for text in starters("en"):
        for _ in range(5):
            answer = await small.ask(text, max_tokens=SMOLLM2.spec.max_output_tokens)
            assert re.search(QUESTIONS[text], answer.text), answer.text


@pytest.mark.weights
@pytest.mark.full
async def test_cut_answer_is_continued_in_its_own_words(small: Agent) -> None:
    """At temperature 0, an answer in two parts is the same text as in one, also if it is cut after a line break."""
    connection = cast(ChatCompletionsConnection, small.connection)
    spec = replace(connection.spec, examples=())  # without them, it writes more than a line
    async with Agent(connect(spec, connection.endpoint)) as one:
        for question in ("Write a long story about the sea.", "Count from one to twenty in words."):
            whole = await one.ask(question, max_tokens=48)
            for tokens in (7, 12, 20):
                cut = await one.ask(question, max_tokens=tokens)
                rest = await one.continue_answer(cut.context, max_tokens=20)
                assert rest.text
                assert whole.text.startswith((cut.text + rest.text)[: len(cut.text) + 20])
