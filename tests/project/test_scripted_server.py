"""The laws of the scripted model server. The tests of stop, errors and bubbles and the bench rely on them."""

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.script_language import Deltas, parse, pieces, plan, token
from tests.support.scripted_server import Config, Running, running

MODEL = "Qwen/Qwen3-8B"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def server() -> Iterator[Running]:
    with running() as server:
        yield server


@pytest.fixture
async def client(server: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        yield client


def prompt(text: str, *earlier: dict[str, Any]) -> list[Any]:
    return [*earlier, {"role": "user", "content": text}]


async def stream(client: openai.AsyncOpenAI, text: str, **more: Any) -> list[Any]:
    """Return all chunks of a streamed answer."""
    answer = await client.chat.completions.create(model=MODEL, messages=prompt(text), stream=True, **more)
    return [chunk async for chunk in answer]


def items(action: object) -> Sequence[dict[str, Any]]:
    return action.items if isinstance(action, Deltas) else ()


def content(chunks: list[Any]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


@pytest.mark.parametrize("count", [1, 2, 50, 4000])
def test_markdown_has_numbered_words(count: int) -> None:
    tokens = [
        item["content"] for action in plan({"messages": prompt(f"!markdown {count} @200")}) for item in items(action)
    ]
    assert len(tokens) == count
    numbered = [(at, re.fullmatch(r"\s*word(\d+)", piece)) for at, piece in enumerate(tokens)]
    assert all(int(found[1]) == at for at, found in numbered if found)
    assert numbered[0][1]
    assert numbered[-1][1]
    text = "".join(tokens)
    assert all(part in text for part in ("\n## ", "\n- ", "```python\n", "\n|---|", "\n$$ ")) is (count == 4000)


@pytest.mark.parametrize("rate", [100, 200, 1000])
@pytest.mark.slow
async def test_tokens_arrive_at_set_pace(server: Running, client: openai.AsyncOpenAI, rate: int) -> None:
    count = rate + 1
    chunks = await stream(client, f"!tokens {count} @{rate}")
    [line] = server.journal()
    assert content(chunks) == "".join(token(i) for i in range(count))
    assert (line["sent"], line["ended"], line["finished"]) == (count, "stop", True)
    assert [mark["n"] for mark in line["marks"]] == list(range(50, count + 1, 50))
    late = [mark["mono"] - line["first"]["mono"] - (mark["n"] - 1) / rate for mark in line["marks"]]
    # Tokens are never early after the request. On a busy machine some are late, but the delays do not add up.
    assert all(mark["mono"] - line["at"]["mono"] >= (mark["n"] - 1) / rate for mark in line["marks"])
    assert min(late) < 0.25
    assert max(late) < 2


@pytest.mark.parametrize("script", ["!stall-before", "!stall-before headers", "!stall-after 5", "!tokens 9000 @100"])
async def test_leaving_client_is_noticed_at_once(server: Running, client: openai.AsyncOpenAI, script: str) -> None:
    task = asyncio.create_task(stream(client, script))
    await asyncio.sleep(0.3)
    task.cancel()
    left = time.monotonic()
    await asyncio.gather(task, return_exceptions=True)
    [line] = await asyncio.to_thread(server.wait_for, lambda lines: lines[0]["closed"])
    assert line["closed"]["mono"] - left < 2  # about 1 ms on an idle machine
    assert (line["ended"], line["finished"]) == ("client_closed", False)
    assert line["sent"] == {"!stall-after 5": 5}.get(script, line["sent"])


async def test_usage_is_sent_only_on_request(client: openai.AsyncOpenAI) -> None:
    script = "!think 3 @500 !text one two"
    asked = await stream(client, script, stream_options={"include_usage": True})
    assert [chunk.usage for chunk in await stream(client, script)] == [None] * (len(asked) - 1)
    assert asked[-1].choices == []
    assert asked[-1].usage.completion_tokens == 5
    assert asked[-1].usage.completion_tokens_details.reasoning_tokens == 3


async def test_whole_answer_equals_stream(client: openai.AsyncOpenAI) -> None:
    script = '!reasoning Let me see. !text Here: !tools a {"x": 1} b {"y": [2, "!text no"]}'
    whole = await client.chat.completions.create(model=MODEL, messages=prompt(script))
    [choice] = whole.choices
    assert choice.message.reasoning == "Let me see."  # type: ignore[attr-defined]
    assert choice.message.content == "Here:"
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]
    assert calls == [("a", {"x": 1}), ("b", {"y": [2, "!text no"]})]
    assert choice.finish_reason == "tool_calls"


async def test_results_are_quoted_before_next_step(client: openai.AsyncOpenAI) -> None:
    def after(script: str) -> list[Any]:
        call = {"id": "c", "type": "function", "function": {"name": "a", "arguments": "{}"}}
        said = {"role": "assistant", "content": None, "tool_calls": [call]}
        return [*prompt(script), said, {"role": "tool", "tool_call_id": "c", "content": "42"}]

    quoted = await client.chat.completions.create(model=MODEL, messages=after("!tool a {}"))
    scripted = await client.chat.completions.create(model=MODEL, messages=after("!tool a {} !text done"))
    again = await client.chat.completions.create(model=MODEL, messages=after("!loop a {}"))
    assert quoted.choices[0].message.content == 'The tools said: "42"'
    assert scripted.choices[0].message.content == "done"
    assert again.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("!status 401", openai.AuthenticationError),
        ("!status 404", openai.NotFoundError),
        ("!status 429 7", openai.RateLimitError),
        ("!status 500", openai.InternalServerError),
        ("!context", openai.BadRequestError),
        ("!reset 3", openai.APIConnectionError),
        ("!error-event 3", openai.APIError),
    ],
)
async def test_trouble_reaches_client_unchanged(
    client: openai.AsyncOpenAI, script: str, error: type[openai.APIError]
) -> None:
    with pytest.raises(error) as caught:
        await stream(client, script)
    if script == "!status 429 7":
        assert caught.value.response.headers["retry-after"] == "7"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("script", "reason"), [("!cut 3", None), ("!length 3", "length"), ("!filter 3", "content_filter")]
)
async def test_unusual_endings(client: openai.AsyncOpenAI, script: str, reason: str | None) -> None:
    chunks = await stream(client, script)
    assert content(chunks) == "".join(token(i) for i in range(3))
    assert chunks[-1].choices[0].finish_reason == reason


async def test_server_fails_as_told_then_answers(client: openai.AsyncOpenAI) -> None:
    for _ in range(2):
        with pytest.raises(openai.InternalServerError):
            await stream(client, "!fail 2 503 !text at last")
    assert content(await stream(client, "!fail 2 503 !text at last")) == "at last"


async def test_raw_deltas_are_sent_unchanged(client: openai.AsyncOpenAI) -> None:
    deltas = [{"content": " a"}, {"reasoning": ""}, {"wait": 0.05}, {"content": "\n"}, {"finish": "length"}]
    chunks = await stream(client, "!json " + json.dumps(deltas))
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["", " a", None, "\n", None]
    assert chunks[-1].choices[0].finish_reason == "length"


async def test_other_text_gets_a_default_answer(client: openai.AsyncOpenAI) -> None:
    earlier = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "!cut"}]
    answer = await client.chat.completions.create(model=MODEL, messages=prompt("!important, really", *earlier))
    assert answer.choices[0].message.content == (
        'Hello! You said: "!important, really". Before it I was sent 1 messages.'
    )


async def test_server_lists_and_checks_models() -> None:
    config = Config(models=("a", "b"), max_model_len=99, api_key="secret")
    with running(config) as server:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="secret", max_retries=0) as client:
            listed = (await client.models.list()).data
            assert [(model.id, model.max_model_len) for model in listed] == [("a", 99), ("b", 99)]  # type: ignore[attr-defined]
            with pytest.raises(openai.NotFoundError, match="does not exist"):
                await stream(client, "hello")
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()


def test_command_starts_at_known_name_only() -> None:
    named = [(command.name, command.text) for command in parse('!text so !what? !tool f {"s": "a !text b"} !cut')]
    assert named == [("text", "so !what?"), ("tool", 'f {"s": "a !text b"}'), ("cut", "")]
    assert parse("say !text") == []


def test_plan_is_read_without_server() -> None:
    body = {"messages": prompt("!text a\\n\tb  c")}
    assert "".join(delta["content"] for delta in pieces(plan(body))) == "a\n\tb  c"


def test_server_runs_as_program() -> None:
    command = [sys.executable, "-m", "tests.support.scripted_server", "--port", "0", "--model", "m"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            base_url = process.stdout.readline().strip()
            with openai.OpenAI(base_url=base_url, api_key="none") as client:
                assert [model.id for model in client.models.list()] == ["m"]
        finally:
            process.terminate()


CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}


@pytest.mark.parametrize(
    ("script", "begun", "rest"),
    [
        ("!text One two three.", "One t", "wo three."),
        ("!reasoning Hm. !wait 60 !text One two.", "One", " two."),
        ("!tokens 4", token(0) + token(1).strip(), " " + token(2) + token(3)),
        ("!length 2", token(0) + token(1), token(2) + token(3)),
        ("!tool clock {} !text It is late.", "It is", " late."),
        ("Hi!", 'Hello! You said: "Hi!".', " Before it I was sent 0 messages."),
    ],
)
def test_continued_text_gets_its_rest(script: str, begun: str, rest: str) -> None:
    messages = prompt(script)
    if script.startswith("!tool"):
        messages += [{"role": "assistant", "tool_calls": [{}]}, {"role": "tool", "content": "22:00"}]
    body = {"messages": [*messages, {"role": "assistant", "content": begun}], **CONTINUE}
    assert "".join(delta.get("content", "?") for delta in pieces(plan(body))) == rest


async def test_continuation_without_its_second_field_is_refused(client: openai.AsyncOpenAI) -> None:
    messages = [*prompt("!text One two."), {"role": "assistant", "content": "One"}]
    with pytest.raises(openai.BadRequestError, match="add_generation_prompt"):
        await client.chat.completions.create(
            model=MODEL, messages=messages, extra_body={"continue_final_message": True}
        )
