"""The rules of the strictest model server for a conversation."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart

from agent import Agent, Run
from tests.support.scripted_server import Running


def assert_accepted(messages: Sequence[Mapping[str, Any]]) -> None:
    """Assert the rules of the strictest chat template and API for a conversation in OpenAI's format."""
    before = "start"
    waiting: list[str] = []
    for number, message in enumerate(messages):
        role = message["role"]
        if role == "tool":
            assert waiting, "a result without its call right before it"
            assert message["tool_call_id"] == waiting.pop(0), "the results are not those of the calls, in their order"
            assert _is_content(message["content"])
        else:
            assert not waiting, f"calls without results: {waiting}"
        match role:
            case "system":
                assert number == 0
            case "user":
                assert before in ("start", "system", "assistant", "tool")
            case "assistant":
                assert before in ("user", "tool")
                calls = message.get("tool_calls") or []
                assert calls or (message.get("content") or "").strip(), "an empty assistant message"
                waiting = [call["id"] for call in calls]
                assert all(waiting)
                assert len(set(waiting)) == len(waiting)
                for call in calls:
                    assert call["function"]["name"]
                    assert isinstance(json.loads(call["function"]["arguments"]), dict)
            case "tool":
                assert before in ("assistant", "tool")
            case _:
                pytest.fail(f"role {role!r}")
        before = role
    assert not waiting


def _is_content(content: object) -> bool:
    """Return True for a text, or for the parts of a result with media, which stay in place in this format."""
    if isinstance(content, list):
        return bool(content) and all(
            part["type"] in ("text", "image_url", "input_audio", "file") and part[part["type"]] for part in content
        )
    return isinstance(content, str)


def hello(text: str = "And now?") -> ModelRequest:
    return ModelRequest([UserPromptPart(text)])


def one_prompt_each(messages: list[ModelMessage]) -> list[ModelMessage]:
    """Keep one prompt in each message. Several are allowed, but a strict template refuses them."""
    out: list[ModelMessage] = [hello("Hello")]
    for message in messages:
        if isinstance(message, ModelRequest):
            prompts = [part for part in message.parts if isinstance(part, UserPromptPart)]
            parts = [part for part in message.parts if part not in prompts[1:]]
            out.append(replace(message, parts=parts))
        else:
            out.append(message)
    return out


async def assert_continues(agent: Agent, server: Running, run: Run) -> None:
    """Assert that the next message on the same context works and sends a valid history."""
    again = await agent.ask("!text Yes.", context=run.context)
    assert (again.finish_reason, again.text) == ("stop", "Yes.")
    assert_accepted(server.journal()[-1]["body"]["messages"])
