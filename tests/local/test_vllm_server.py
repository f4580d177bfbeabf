"""The behaviour of vLLM over plain HTTP that the provider code relies on, checked on a real server."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.support import vllm_server
from tests.support.vllm_server import MARKS, VllmServer

pytestmark = MARKS
vllm = vllm_server.vllm

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture
def client(vllm: VllmServer) -> Iterator[httpx2.Client]:
    with httpx2.Client(
        base_url=vllm.url, headers={"Authorization": f"Bearer {vllm.key}"}, timeout=60, trust_env=False
    ) as client:
        yield client


def body(server: VllmServer, text: str = "What is the capital of France?", **more: Any) -> dict[str, Any]:
    return {
        "model": server.model,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": 24,
        **more,
    }


def chunks(response: httpx2.Response) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream up to [DONE], which must be the last one."""
    lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    for line in lines[:-1]:
        yield json.loads(line.removeprefix("data: "))


def weather_tool(*, strict: bool) -> dict[str, Any]:
    function = {"name": "weather", "description": "Weather of a city", "parameters": WEATHER, "strict": strict}
    return {"type": "function", "function": function}


def test_text_streams_and_usage_comes_last(vllm: VllmServer, client: httpx2.Client) -> None:
    asked = body(vllm, stream=True, stream_options={"include_usage": True})
    with client.stream("POST", "/chat/completions", json=asked) as response:
        assert response.status_code == 200
        *deltas, last = chunks(response)
    pieces = [chunk["choices"][0]["delta"].get("content") or "" for chunk in deltas]
    assert sum(1 for piece in pieces if piece) > 1
    assert deltas[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["finish_reason"] for chunk in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1]["choices"][0]["finish_reason"] in ("stop", "length")
    assert last["choices"] == []
    usage = last["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 0 < usage["completion_tokens"] <= 24


@pytest.mark.parametrize("key", ["wrong", ""], ids=["wrong", "none"])
def test_wrong_key_is_401_with_bare_string(vllm: VllmServer, key: str) -> None:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    response = httpx2.post(f"{vllm.url}/chat/completions", json=body(vllm), headers=headers, trust_env=False)
    assert response.status_code == 401
    assert response.json() == {"error": "Unauthorized"}


def test_server_lists_model_and_context(vllm: VllmServer, client: httpx2.Client) -> None:
    (model,) = client.get("/models").raise_for_status().json()["data"]
    assert (model["id"], model["max_model_len"]) == (vllm.model, vllm.context_tokens)


def test_unknown_model_is_404(vllm: VllmServer, client: httpx2.Client) -> None:
    response = client.post("/chat/completions", json=body(vllm) | {"model": "nobody/knows-this"})
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "NotFoundError"
    assert "nobody/knows-this" in response.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_too_long_prompt_is_400_before_streaming(vllm: VllmServer, client: httpx2.Client, stream: bool) -> None:
    response = client.post("/chat/completions", json=body(vllm, "word " * 2 * vllm.context_tokens, stream=stream))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "input_tokens"
    assert f"maximum context length is {vllm.context_tokens} tokens" in response.json()["error"]["message"]


def test_closing_stream_ends_request_on_server(vllm: VllmServer, client: httpx2.Client) -> None:
    endless = body(vllm, "Tell a long story.", stream=True, max_tokens=1900, ignore_eos=True)
    with client.stream("POST", "/chat/completions", json=endless) as response:
        lines = response.iter_lines()
        for _ in range(5):
            next(lines)
        assert vllm.running_requests() == 1
    vllm.wait_until_idle()  # the rest of its 1900 tokens would take longer


@pytest.mark.parametrize(
    ("choice", "finish_reason"),
    [("required", "tool_calls"), ({"type": "function", "function": {"name": "weather"}}, "stop")],
    ids=["required", "named"],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_strict_tool_gets_arguments_of_its_schema(
    vllm: VllmServer, client: httpx2.Client, choice: str | dict[str, Any], finish_reason: str, stream: bool
) -> None:
    # Without "strict" vLLM enforces only the form of a call, and this model then sends no object at all.
    asked = body(
        vllm, "Weather in Paris?", max_tokens=100, tools=[weather_tool(strict=True)], tool_choice=choice, stream=stream
    )
    if stream:
        with client.stream("POST", "/chat/completions", json=asked) as response:
            choices = [chunk["choices"][0] for chunk in chunks(response)]
        calls = [call for part in choices for call in part["delta"].get("tool_calls") or []]
        assert [call["index"] for call in calls] == [0] * len(calls)
        name = calls[0]["function"]["name"]
        arguments = "".join(call["function"].get("arguments") or "" for call in calls)
        assert sum(1 for call in calls if call.get("id")) == 1
        ended = choices[-1]["finish_reason"]
    else:
        (answer,) = client.post("/chat/completions", json=asked).raise_for_status().json()["choices"]
        (call,) = answer["message"]["tool_calls"]
        name, arguments, ended = call["function"]["name"], call["function"]["arguments"], answer["finish_reason"]
    assert name == "weather"
    assert json.loads(arguments)["city"] in ("Paris", "Rome")
    assert ended in (finish_reason, "tool_calls")
