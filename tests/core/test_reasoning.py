"""The effort of reasoning: what each provider receives, what the result records, and what people are told."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic.alias_generators import to_camel

from agent import Agent, Effort, Endpoint, ModelSpec, connect
from agent.models.catalog import load_catalog
from agent.providers.connection import effort_note, is_off, least, nearest
from tests.support import dialects
from tests.support.dialect_server import Playing, Reply
from tests.support.models import QWEN3
from tests.support.scripted_server import Config, Running, running

running_server, server = dialects.running_server, dialects.server

EFFORTS = get_args(Effort)
ASKED = (None, True, False, *EFFORTS)


def of(body: dict[str, Any]) -> Any:
    """Return the reasoning setting in a request body, read independently of the code."""
    if "reasoning" in body:
        return body["reasoning"].get("effort")
    if "thinking" in body:
        if body["thinking"]["type"] in ("disabled", "between_tools"):
            return False
        if body["thinking"]["type"] == "enabled":
            return {2048: "low", 4096: "medium", 8192: "high"}[body["thinking"]["budget_tokens"]]
        return body.get("output_config", {}).get("effort", True)
    if "generationConfig" in body:
        said = {to_camel(name): value for name, value in body["generationConfig"].get("thinkingConfig", {}).items()}
        if (budget := said.get("thinkingBudget")) is not None:
            return {0: False, -1: True, 128: "minimal", 2048: "low", 8192: "medium", 24576: "high"}[budget]
        level = said.get("thinkingLevel")
        return level.lower() if level else None
    return None


MODELS = [
    *("openai:gpt-6-luna", "openai:o3", "openai:gpt-5", "xai:grok-4.6", "xai:grok-4.3"),
    *("anthropic:claude-sonnet-5-5", "anthropic:claude-haiku-4-5", "anthropic:claude-opus-4-6"),
    *("google:gemini-3.8-flash", "google:gemini-2.5-flash", "google:gemini-2.5-pro"),
    *("openai:gpt-99-tomorrow", "anthropic:claude-tomorrow-9"),
]


@pytest.mark.parametrize("name", MODELS)
async def test_result_notes_the_sent_effort(server: Playing, name: str) -> None:
    spec = load_catalog().find(name)
    advice = spec.advice(datetime.now(UTC).date())
    path = "" if spec.dialect in ("messages", "generate") else "/v1"
    async with Agent(connect(spec, Endpoint(server.url + path, "key"))) as agent:
        for asked in ASKED:
            server.play(
                Reply(status=400, body={"error": {"message": "Enough.", "code": 400, "status": "INVALID_ARGUMENT"}})
            )
            result = await agent.ask("Hello", reasoning=asked)
            assert (advice in result.notes) == bool(advice), "a retired model is not reported"
            notes = [note for note in result.notes if note != advice]
            sent = of(server.requests[-1].json)
            unseen = (None, False) if is_off(asked) else (None,)  # models that reason only on request need no "off"
            if asked is None:  # the request can only ask to see the reasoning
                assert (result.effort, notes) == (None, [])
                continue
            assert sent == result.effort or (sent is None and result.effort in unseen), asked
            if asked is True:
                assert notes == []
            elif isinstance(asked, str) and asked != "none" and result.effort != asked:
                assert len(notes) == 1, "the lost setting is not reported"
                assert asked in notes[0]


@pytest.fixture(scope="module")
def scripted() -> Iterator[Running]:
    with running(Config(rate=0)) as server:
        yield server


@pytest.mark.parametrize(
    ("changes", "asked", "sent", "note"),
    [
        ({}, None, None, ""),
        ({}, True, True, ""),
        ({}, "none", False, ""),
        ({}, False, False, ""),
        ({"provider": "llama.cpp"}, True, True, ""),
        ({"provider": "llama.cpp"}, False, False, ""),
        ({}, "high", True, "Qwen3 has no efforts: its reasoning was turned on, and not high."),
        ({"reasoning": False}, True, None, "Qwen3 cannot reason; it was asked to answer without."),
        ({"reasoning": False}, "low", None, "Qwen3 cannot reason; it was asked to answer without."),
        ({"reasoning": False}, False, None, ""),
        ({"always_reasons": True}, False, True, "The reasoning of Qwen3 cannot be turned off here."),
        (
            {"provider": "huggingface"},
            True,
            None,
            "The reasoning of Qwen3 cannot be chosen here; it reasons as it comes.",
        ),
    ],
)
async def test_template_switches_reasoning(
    scripted: Running, changes: dict[str, Any], asked: Any, sent: Any, note: str
) -> None:
    async with Agent(connect(replace(QWEN3, **changes), Endpoint(scripted.base_url))) as agent:
        result = await agent.ask("!text Yes.", reasoning=asked)
    assert (result.text, result.effort, result.notes) == ("Yes.", sent, (note,) if note else ())
    said = scripted.journal()[-1]["body"].get("chat_template_kwargs")
    assert said == (None if sent is None else {"enable_thinking": sent})


async def test_hidden_reasoning_stays_in_history(scripted: Running) -> None:
    async with Agent(connect(QWEN3, Endpoint(scripted.base_url))) as agent:
        run = agent.run("!reasoning Hm. !text Yes.", reasoning=True, ignore_reasoning=True)
        responses = [response async for response in run]
        assert {response.type for response in responses} == {"output_text"}
        assert responses[0].is_type_switched
        await agent.ask("!text No.", context=run.context)
    assert scripted.journal()[-1]["body"]["messages"][1]["reasoning"] == "Hm."


ACCEPTED = st.sets(st.sampled_from(EFFORTS))


@given(st.sampled_from(EFFORTS), ACCEPTED)
def test_nearest_effort_is_never_off(asked: Effort, accepted: set[Effort]) -> None:
    found, some = nearest(asked, accepted), accepted - {"none"}
    assert (found is None) == (not some)
    if asked in some:
        assert found == asked
    elif found is not None:
        assert found in some
        above = [one for one in some if EFFORTS.index(one) > EFFORTS.index(asked)]
        assert (EFFORTS.index(found) > EFFORTS.index(asked)) == bool(above)
    assert least(accepted) == min(accepted, key=EFFORTS.index, default=None)


def test_exact_effort_needs_no_note() -> None:
    spec = ModelSpec(id="a:b", name="b", label="B", provider="a", reasoning=True)
    assert [effort_note(asked, asked, spec) for asked in ASKED] == [""] * len(ASKED)
