"""A server that refuses tools, pictures or schemas is asked again without them, once for each, and it is remembered.

The bodies are those of real servers. Their source stands beside each.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import BinaryContent

from agent import Agent, Endpoint, InputError, Limits, connect
from agent.models.catalog import load_catalog
from agent.providers.refusals import Ability, refused_ability
from tests.support.dialect_server import Playing, Reply, playing
from tests.support.dialects import weather
from tests.support.media_files import PNG
from tests.support.replies.chat_completions import ANSWER, ROLE, chunk, ending, reply


@dataclass
class Weather:
    celsius: int


NUMBERS = count()
PICTURE = BinaryContent(PNG, media_type="image/png")


@pytest.fixture
def server() -> Iterator[Playing]:
    with playing() as server:
        yield server


def agent_of(server: Playing, name: str, **changed: Any) -> Agent:
    spec = replace(load_catalog().find(name, "vllm"), **changed)
    return Agent(connect(spec, Endpoint(f"{server.url}/v1")), tools=[weather], limits=Limits(retries=0))


def new_name() -> str:
    """Return a name that no other test uses, because refusals are remembered for the whole process."""
    return f"Unheard-Of-{next(NUMBERS)}"


def error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


def sent(server: Playing) -> list[set[str]]:
    """Return what each request used."""
    uses: list[set[str]] = []
    for request in server.requests:
        body = request.json
        found = {
            "tools": "tools" in body,
            "schema": "response_format" in body,
            "image": "image_url" in json.dumps(body["messages"]),
            "switch": "chat_template_kwargs" in body,
        }
        uses.append({name for name, is_used in found.items() if is_used})
    return uses


OPENROUTER = (
    'No endpoints found that support tool use. Try disabling "weather". To learn more, visit: https://openrouter.ai'
)
GATEWAY = {"raw": '{"message":"This model doesn\'t support tool use."}', "provider_name": "X"}
FORBIDDEN = {"type": "extra_forbidden", "loc": ["body", "tools"], "msg": "Extra inputs are not permitted"}
TOOLS: dict[str, tuple[int, Any]] = {
    # vllm/entrypoints/openai/chat_completion/serving.py
    "vLLM": (400, error('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')),
    # github.com/ollama/ollama/issues/14795
    "Ollama": (400, error("registry.ollama.ai/library/gemma3:4b does not support tools", type="api_error", code=None)),
    # github.com/evalstate/fast-agent/issues/122 and a later wording
    "OpenRouter": (404, error(OPENROUTER, code=404)),
    # llama.cpp, tools/server/utils.hpp, as error 500 until 2025 and 400 since then
    "llama.cpp, old": (500, error("tools param requires --jinja flag", code=500, type="server_error")),
    "llama.cpp": (400, error("tools param requires --jinja flag", code=400, type="invalid_request_error")),
    # console.groq.com/docs/errors
    "Groq": (400, error("`tool calling` is not supported with this model", type="invalid_request_error")),
    # docs.mistral.ai, "Function calling"
    "Mistral": (400, {"object": "error", "message": "Function calling is not enabled for this model", "code": 3051}),
    # FastAPI's answer of a server that forbids unknown fields
    "FastAPI": (422, {"detail": [FORBIDDEN]}),
    "a gateway": (400, error("Provider returned error", code=400, metadata=GATEWAY)),
}


@pytest.mark.parametrize("named", TOOLS)
async def test_refused_tools_are_left_out(server: Playing, named: str) -> None:
    status, body = TOOLS[named]
    server.play(Reply(status=status, body=body), ANSWER, ANSWER)
    name = new_name()
    async with agent_of(server, name) as agent:
        result = await agent.ask("How is the weather in Rom?")
    assert (result.finish_reason, result.text) == ("stop", "Done.")
    assert sent(server) == [{"tools"}, set()]
    assert [note for note in result.notes if "tools" in note] == [result.note.omitted]
    async with agent_of(server, name) as other:  # which did not see the refusal
        result = await other.ask("And now?")
    assert (result.text, sent(server)[2:]) == ("Done.", [set()])
    assert "takes no tools" in result.note.omitted


MMPROJ = "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
SERDE = "Failed to deserialize the JSON body into the target type: "
IMAGES: dict[str, tuple[int, Any]] = {
    # llama.cpp, github.com/ggml-org/llama.cpp/issues/15377 and 13566
    "llama.cpp": (500, error(MMPROJ, code=500, type="server_error")),
    # github.com/studio-dots-ai/dots.ocr/issues/61
    "vLLM": (400, {"object": "error", "message": "m is not a multimodal model None", "type": "BadRequestError"}),
    "vLLM, none allowed": (400, error("At most 0 image(s) may be provided in one prompt.", type="BadRequestError")),
    # github.com/lmstudio-ai/lmstudio-bug-tracker/issues/908
    "LM Studio": (400, {"error": "Model does not support images. Please use a model that does."}),
    # github.com/JohnnyZ93/oai-compatible-copilot/issues/229
    "OpenRouter": (404, error("No endpoints found that support image input", code=404)),
    # github.com/ollama/ollama/issues/17301
    "Ollama": (400, error("this model does not support image input", type="api_error")),
    "Groq": (400, error("'messages.0' : for 'role:user' messages[0].content must be a string")),
    # DeepSeek's parser of requests is serde
    "DeepSeek": (422, error(SERDE + "messages[0]: unknown variant `image_url`, expected `text` at line 1 column 97")),
    "OpenAI": (400, error("Invalid content type. image_url is only supported by certain models.")),
}


@pytest.mark.parametrize("named", IMAGES)
async def test_refused_picture_is_left_out(server: Playing, named: str) -> None:
    status, body = IMAGES[named]
    server.play(Reply(status=status, body=body), ANSWER)
    async with agent_of(server, new_name()) as agent:
        result = await agent.ask(["What is this?", PICTURE])
    assert (result.finish_reason, result.text) == ("stop", "Done.")
    assert sent(server) == [{"tools", "image"}, {"tools"}]
    assert "pictures" in result.note.omitted
    assert agent.connection.spec.image is False


SCHEMAS: dict[str, tuple[int, Any]] = {
    # github.com/llm-exe/llm-exe/issues/662
    "DeepSeek": (400, error("This response_format type is unavailable now", type="invalid_request_error", param=None)),
    # github.com/BerriAI/litellm/issues/7580
    "DeepSeek, old": (422, error(SERDE + "response_format: response_format.type `json_schema` is unavailable now")),
    # github.com/TypeWhisper/typewhisper-win/issues/26
    "Groq": (400, error("The model only supports response formats: [json text].")),
    "Groq, newer": (400, error("This model does not support response format `json_schema`. See supported models at")),
    "vLLM": (400, error("The provided JSON schema contains features not supported by xgrammar.")),
    "llama.cpp": (400, error("Failed to parse grammar", code=400)),
}


@pytest.mark.parametrize("named", SCHEMAS)
async def test_refused_schema_goes_into_the_prompt(server: Playing, named: str) -> None:
    status, body = SCHEMAS[named]
    server.play(Reply(status=status, body=body), reply(ROLE, chunk(content='{"celsius": 21}'), *ending()))
    async with agent_of(server, new_name(), tools="none") as agent:
        result = await agent.ask("How is the weather in Rom?", output=Weather)
    assert result.checked().output == Weather(celsius=21)
    assert sent(server) == [{"schema"}, set()]
    assert "schema" in result.note.omitted


async def test_each_refusal_is_corrected_once(server: Playing) -> None:
    server.play(
        Reply(status=400, body=error("property 'chat_template_kwargs' is unsupported")),
        Reply(status=IMAGES["LM Studio"][0], body=IMAGES["LM Studio"][1]),
        Reply(status=TOOLS["Groq"][0], body=TOOLS["Groq"][1]),
        Reply(status=TOOLS["Groq"][0], body=TOOLS["Groq"][1]),
    )
    async with agent_of(server, new_name(), reasoning=True) as agent:
        result = await agent.ask(["What is this?", PICTURE], reasoning=True)
    everything = {"tools", "image", "switch"}
    assert sent(server) == [everything, everything - {"switch"}, {"tools"}, set()]
    assert result.finish_reason == "error"  # the fourth refusal names nothing that is left


def refusal(status: int, body: Any) -> Ability | None:
    failure = ModelHTTPError(status_code=status, model_name="m", body=body)
    return refused_ability(failure, ("tools", "image", "schema", "switch"))


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "image too large: 20000x20000 is not supported"),
        (400, "Unsupported image format: image/heic"),
        (400, "Could not process image"),
        (400, "At most 8 image(s) may be provided in one prompt."),
        (400, "Invalid base64 image_url."),
        (400, "tools[0].function.parameters: unknown keyword 'x'"),
        (400, "messages with role 'tool' must be a response to a preceding message with 'tool_calls'"),
        (500, "error parsing tool call: raw='{' err=unexpected end of JSON input"),
        (404, "The model `gpt-image-9` does not exist or you cannot use it"),
        (429, "tools are not available at the moment"),
        (401, "images require a key"),
        (503, "vision is unavailable"),
        (400, "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens, tools included"),
        (400, "temperature is not supported"),
    ],
)
def test_other_failures_take_nothing_away(status: int, message: str) -> None:
    assert refusal(status, error(message)) is None


ROUTES = {
    "vLLM, FastAPI": {"detail": "Not Found"},
    "llama.cpp": error("File Not Found", code=404, type="not_found_error"),
    "Ollama, Go": b"404 page not found",
    "nothing": b"",
}


@pytest.mark.parametrize("named", ROUTES)
async def test_server_without_responses_is_asked_over_chat(server: Playing, named: str) -> None:
    server.play(Reply(status=404, body=ROUTES[named]), ANSWER, ANSWER, ANSWER)
    spec, endpoint = load_catalog().find("acme-9000", "openai"), Endpoint(f"{server.url}/v1")
    async with Agent(connect(spec, endpoint)) as agent:
        first = await agent.ask(["What is this?", PICTURE], reasoning=True)
        assert (first.finish_reason, first.text) == ("stop", "Done.")
        assert "Responses" in first.note.omitted
        assert (await agent.ask("Go on.", context=first.context)).note.omitted == ""
    async with Agent(connect(spec, endpoint)) as other:
        assert (await other.ask("And you?")).text == "Done."
    assert [request.path for request in server.requests] == ["/v1/responses", *["/v1/chat/completions"] * 3]


async def test_unknown_model_is_not_asked_over_chat(server: Playing) -> None:
    server.play(Reply(status=404, body=error("The model `acme-9000` does not exist", code="model_not_found")))
    spec = load_catalog().find("acme-9000", "openai")
    async with Agent(connect(spec, Endpoint(f"{server.url}/v1"))) as agent:
        assert (await agent.ask("Hello")).finish_reason == "error"
    assert len(server.requests) == 1


async def test_given_capabilities_count_more_than_the_name(server: Playing) -> None:
    server.play(ANSWER)
    url = f"{server.url}/v1"
    async with Agent(
        "Qwen/Qwen3-8B", provider="vllm", base_url=url, tools=[weather], capabilities={"tools": "none", "image": True}
    ) as agent:
        await agent.ask(["What is this?", PICTURE])
    assert sent(server) == [{"image"}]


@pytest.mark.parametrize(
    ("capabilities", "words"),
    [
        ({"vision": True}, "no capability 'vision'; there are image"),
        ({"tools": "yes"}, "one of native, none"),
        ({"image": "yes"}, "must be a bool"),
        ({"context_tokens": 0}, "1 or more"),
        ({"context_tokens": 100, "max_output_tokens": 200}, "does not hold"),
    ],
)
def test_wrong_capability_is_explained(capabilities: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Agent("my-model", provider="vllm", base_url="http://127.0.0.1:1/v1", capabilities=capabilities)


def test_capabilities_belong_to_a_name() -> None:
    agent = Agent("my-model", provider="vllm", base_url="http://127.0.0.1:1/v1", capabilities={"context_tokens": 100})
    assert (agent.connection.spec.context_tokens, agent.connection.spec.max_output_tokens) == (100, 100)
    for model in (agent.connection, "auto"):
        with pytest.raises(InputError, match="capabilities belong to a model"):
            Agent(model, capabilities={"tools": "native"})
