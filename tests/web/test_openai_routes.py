"""The routes below `/v1`, as OpenAI's SDK and `gr.load_chat` use them."""

import asyncio
import base64
import gc
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import gradio as gr
import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion
from starlette.types import Message, Receive, Scope, Send

from agent.errors import AgentError
from agent.settings import PublicSettings
from agent.web import openai_routes
from agent.web.openai_routes import _read  # pyright: ignore[reportPrivateUsage]
from tests.conftest import App
from tests.support.asgi_requests import asked, running_app
from tests.support.media_files import random_png
from tests.support.models import VISION_MODEL
from tests.support.scripted_server import Config, Running
from tests.support.waiting import until
from tests.tiers import examples

TEXT = "Qwen/Qwen3-8B"
SERVER = Config(models=(TEXT, VISION_MODEL), rate=0)
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@pytest.fixture(scope="module")
def own(start_app: Callable[..., App], server: Running) -> App:
    """Start an app whose programs need a key."""
    return start_app("[agent]\nretries = 0", VLLM_BASE_URL=server.base_url, SWITCHBOARD_API_KEY="a key")


@pytest.fixture
async def client(own: App) -> AsyncIterator[AsyncOpenAI]:
    """Give OpenAI's SDK, with the key of the page."""
    async with AsyncOpenAI(base_url=f"{own.url}/v1", api_key="a key", max_retries=0) as made:
        yield made


@pytest.mark.parametrize(
    ("given", "header", "status"),
    [
        ({"api_key": "a key"}, {}, 401),
        ({"api_key": "a key"}, {"authorization": b"Bearer another"}, 401),
        ({"api_key": "a key"}, {"authorization": b"Bearer a key"}, 200),
        ({}, {}, 200),
        ({"public": PublicSettings()}, {}, 404),
        ({"public": PublicSettings(api=True)}, {}, 200),
    ],
)
async def test_only_allowed_programs_see_models_with_a_key(
    tmp_path: Path, server: Running, given: Any, header: Any, status: int
) -> None:
    async with running_app(tmp_path, server.base_url, **given) as app:
        await app.state.conversations.models.local.ready()
        answer = await asked(app, "GET", "/v1/models", **header)
    assert answer.status == status
    if status == 200:
        assert [one["id"] for one in json.loads(answer.text)["data"]] == [f"vllm:{TEXT}", f"vllm:{VISION_MODEL}"]


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


async def ask(client: AsyncOpenAI, text: str, **options: Any) -> ChatCompletion:
    """Ask the first model and return its answer, which must not depend on whether it is streamed."""
    create: Any = client.chat.completions.create
    whole: ChatCompletion = await create(model="", messages=user(text), **options)
    message: dict[str, Any] = {}
    used = reason = None
    usage = {"include_usage": True}
    async for chunk in await create(model="", messages=user(text), stream=True, stream_options=usage, **options):
        used = chunk.usage or used
        for choice in chunk.choices:
            reason = choice.finish_reason or reason
            given = choice.delta.model_dump(exclude_none=True)
            for name in ("content", "reasoning_content"):
                message[name] = message.get(name, "") + given.get(name, "")
            for call in given.get("tool_calls", ()):
                assert call.pop("index") == len(message.setdefault("tool_calls", []))
                message["tool_calls"].append({**call, "id": "any"})
    first: dict[str, Any] = whole.choices[0].message.model_dump(exclude_none=True)
    assert first.pop("role") == "assistant"
    assert message == {"content": "", "reasoning_content": ""} | (
        first
        if "tool_calls" not in first
        else {**first, "tool_calls": [c | {"id": "any"} for c in first["tool_calls"]]}
    )
    assert (reason, used) == (whole.choices[0].finish_reason, whole.usage)
    return whole


async def test_answer_has_text_reasoning_and_usage(client: AsyncOpenAI, server: Running) -> None:
    answer = await ask(client, "!reasoning Hm. !text Paris.", temperature=0.5, max_tokens=50, top_p=0.9, stop="END")
    message = answer.choices[0].message
    assert (message.content, message.model_extra) == ("Paris.", {"reasoning_content": "Hm."})
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0
    body = server.journal()[-1]["body"]
    assert (body["temperature"], body["top_p"], body["stop"]) == (0.5, 0.9, ["END"])
    assert 50 in (body.get("max_tokens"), body.get("max_completion_tokens"))
    assert (await ask(client, "!length 5")).choices[0].finish_reason == "length"


async def test_caller_runs_its_tools(client: AsyncOpenAI, server: Running) -> None:
    script = '!tool weather {"city": "Rome"} !text Sunny.'
    answer = await ask(client, script, tools=[TOOL], tool_choice="required")
    [call] = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert (answer.choices[0].finish_reason, call.function.name) == ("tool_calls", "weather")
    assert json.loads(call.function.arguments) == {"city": "Rome"}
    body = server.journal()[-1]["body"]
    assert [one["function"]["name"] for one in body["tools"]] == ["weather"]
    assert body["tool_choice"] == "required"
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "sun"}
    said: Any = [*user(script), answer.choices[0].message.model_dump(exclude_none=True), result]
    after = await client.chat.completions.create(model=TEXT, messages=said, tools=[TOOL])
    assert after.choices[0].message.content == "Sunny."


async def test_picture_reaches_only_a_model_that_sees(client: AsyncOpenAI, server: Running) -> None:
    png = base64.b64encode(random_png()).decode()
    picture: Any = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png}"}}
    said: Any = [{"role": "user", "content": [{"type": "text", "text": "!text Red."}, picture]}]
    await client.chat.completions.create(model=VISION_MODEL, messages=said)
    assert png in json.dumps(server.journal()[-1]["body"])
    with pytest.raises(openai.BadRequestError, match="cannot take images"):
        await client.chat.completions.create(model=f"vllm:{TEXT}", messages=said)
    picture["image_url"]["url"] = "http://127.0.0.1/a.png"
    with pytest.raises(openai.BadRequestError, match="data URLs"):
        await client.chat.completions.create(model=VISION_MODEL, messages=said)


async def test_models_are_listed(client: AsyncOpenAI) -> None:
    listed = [one.id async for one in client.models.list()]
    assert listed[:2] == [f"vllm:{TEXT}", f"vllm:{VISION_MODEL}"]


@pytest.mark.parametrize(
    ("options", "status", "code"),
    [
        ({"messages": user("!status 429 7")}, 429, "rate_limit_exceeded"),
        ({"messages": user("!context")}, 400, "context_length_exceeded"),
        ({"messages": user("!cut 0")}, 502, None),
        ({"messages": []}, 400, None),
        ({"messages": user("Hi") * 10_001}, 400, None),
        ({"messages": [{"role": "nobody", "content": "Hi"}]}, 400, None),
        ({"model": "nothing:here"}, 404, "model_not_found"),
        ({"temperature": 9}, 400, None),
        ({"n": 2}, 400, "unsupported_parameter"),
        ({"tool_choice": "required"}, 400, None),
        ({"tools": [{"type": "web_search"}]}, 400, None),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_have_their_status_and_form(
    client: AsyncOpenAI, options: Any, status: int, code: str | None, stream: bool
) -> None:
    with pytest.raises(openai.APIStatusError) as raised:
        await client.chat.completions.create(**({"model": "", "messages": user("Hi"), "stream": stream} | options))
    assert (raised.value.status_code, raised.value.code) == (status, code)
    body: Any = raised.value.body
    assert body["message"]


async def test_error_in_the_middle_ends_the_stream(client: AsyncOpenAI) -> None:
    stream: Any = await client.chat.completions.create(model="", messages=user("!reset 5"), stream=True)
    said = list[str]()

    async def read() -> None:
        async for chunk in stream:
            said.append(chunk.choices[0].delta.content or "")

    with pytest.raises(openai.APIError, match=r"The connection to .* broke"):
        await read()
    assert "".join(said).strip()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", ["!stall-before", "!stall-after 3"])
async def test_caller_that_goes_away_ends_the_request(
    client: AsyncOpenAI, server: Running, stream: bool, script: str
) -> None:
    text = f"{script} {stream}"

    def endings() -> list[str | None]:
        return [line["ended"] for line in server.journal() if text in json.dumps(line["body"])]

    asking = asyncio.create_task(_read_all(client, text, stream))
    await until(lambda: endings() == [None])
    asking.cancel()
    await asyncio.wait([asking])
    await until(lambda: endings() == ["client_closed"])


@pytest.mark.parametrize("begins", [False, True])
async def test_silent_model_leaves_no_connection_silent(
    tmp_path: Path, server: Running, monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    """Proxies cut what says nothing for a minute. A comment is no part of the answer."""
    monkeypatch.setattr(openai_routes, "SIGN_SECONDS", 0.01)
    has_sign = asyncio.Event()
    script = f"{'!text One. ' if begins else ''}!tokens 1 hold 0 SIGN{begins}"
    body = json.dumps({"model": "", "messages": user(script), "stream": True}).encode()
    async with running_app(tmp_path, server.base_url) as app:
        await app.state.conversations.models.local.ready()

        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            said = b""

            async def told(message: Message) -> None:
                nonlocal said
                await send(message)
                said += message.get("body", b"")
                if said.rpartition(b"\n\n: ")[1] and (b"One." in said or not begins):
                    has_sign.set()

            await app(scope, receive, told)

        path = "/v1/chat/completions"
        sending = asked(watched, "POST", path, body=body, waits=True, content_type=b"application/json")
        asking = asyncio.create_task(sending)
        await has_sign.wait()
        server.release(f"SIGN{begins}")
        answer = await asking
    events = [part for part in answer.text.split("\n\n") if part and not part.startswith(":")]
    assert all(one.startswith("data: ") for one in events)
    assert events[-1] == "data: [DONE]"


async def _read_all(client: AsyncOpenAI, text: str, stream: bool) -> None:
    answer: Any = await client.chat.completions.create(model="", messages=user(text), stream=stream)
    async for _ in answer:
        pass


@pytest.mark.parametrize("key", [b"", b"Bearer", b"Bearer another", "Bearer a keyä".encode()])
def test_owners_key_is_needed(own: App, key: bytes) -> None:
    headers = {b"authorization": key} if key else {}
    for refused in (
        httpx.get(f"{own.url}/v1/models", headers=headers, trust_env=False),
        httpx.post(f"{own.url}/v1/chat/completions", content=b"[" * 9, headers=headers, trust_env=False),
    ):
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")


def test_page_of_another_site_asks_nothing(own: App) -> None:
    for headers in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}, {"host": "evil.example"}):
        sent = {"authorization": "Bearer a key", "content-type": "text/plain", **headers}
        body = {"messages": user("Hi")}
        answer = httpx.post(f"{own.url}/v1/chat/completions", json=body, headers=sent, trust_env=False)
        assert answer.status_code in (403, 421)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # Gradio never closes its client
async def test_gradio_chats_with_the_model(own: App, server: Running) -> None:
    # Where no event loop runs, Gradio makes one, and never closes it: a later test would get its warning.
    chat = cast(Any, gr).load_chat(f"{own.url}/v1", model=TEXT, token="a key")
    history = [
        {"role": role, "content": [{"type": "text", "text": text}]}
        for role, text in (("user", "A"), ("assistant", "B"))
    ]
    assert [*chat.fn({"text": "!text Hello there.", "files": []}, history)][-1] == "Hello there."
    assert [one["role"] for one in server.journal()[-1]["body"]["messages"]] == ["user", "assistant", "user"]
    del chat
    gc.collect()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.floats()
    | st.sampled_from(["", "text", "user", "tool", "data:a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "text", "image_url", "url", "function", "name", "id"]), inner)
    ),
    max_leaves=8,
)
ROLES = st.sampled_from(["user", "assistant", "system", "developer", "tool", "function"])
MESSAGE = st.fixed_dictionaries(
    {"role": ROLES | JSON}, optional={name: JSON for name in ("content", "tool_calls", "tool_call_id", "reasoning")}
)
BODY = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGE, max_size=3) | JSON},
    optional={
        name: JSON
        for name in (
            *("model", "tools", "tool_choice", "stop", "temperature", "max_tokens", "stream_options", "n", "seed"),
        )
    },
)


@given(BODY)
@settings(max_examples=examples(200))
def test_no_body_is_read_wrongly(body: dict[str, Any]) -> None:
    with suppress(AgentError):
        assert _read(body).messages
