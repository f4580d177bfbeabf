"""What servers tell about their models becomes a `ModelSpec`: the server, then the catalogue, then the name, decides.

The bodies are those that the servers document. Their source stands beside each.
"""

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

import pytest

from agent import Agent, UnknownModel
from agent.fetch import tls_context
from agent.models.catalog import ModelSpec, Price, load_catalog
from agent.providers.connection import Endpoint
from agent.providers.discovery import described, discover
from tests.support.small_site import Asked, Handler, answer, as_json, site


@dataclass(frozen=True)
class Server:
    """The bodies of a server by path, and some facts that follow, by the name of the model."""

    bodies: Mapping[str, Any]
    facts: Mapping[str, Mapping[str, Any]]
    shown: Mapping[str, Any] = field(default_factory=dict[str, Any])


def entry(id_: str, **more: Any) -> dict[str, Any]:
    return {"id": id_, "object": "model", "created": 1_790_000_000, **more}


def listed(*entries: Mapping[str, Any]) -> dict[str, Any]:
    return {"/v1/models": {"object": "list", "data": list(entries)}}


NATIVE_TEXT = {"tools": "native", "image": False}
NATIVE_EYES = {"tools": "native", "image": True}
LLAMA, ORACLE, PAINTER = "meta-llama/llama-3.3-70b-instruct", "acme/oracle", "acme/painter"
TEXT_ONLY = {"input_modalities": ["text"], "output_modalities": ["text"], "tokenizer": "Llama3"}
HEARS = {"input_modalities": ["text", "image", "audio"], "output_modalities": ["text"]}
PAINTS = {"input_modalities": ["text"], "output_modalities": ["image"]}
ROUTED = [
    {"status": "live", "context_length": 65_536, "pricing": {"input": 0.6, "output": 1.8}, "supports_tools": True},
    {"status": "live", "pricing": {"input": 0.5, "output": 2}, "supports_tools": True},
    {"status": "error", "context_length": 10},
]
CHATS, EMBEDS = {"completion_chat": True}, {"completion_chat": False, "function_calling": False, "vision": False}
LISTED_BY_LM_STUDIO = [
    {"id": "qwen2-vl-7b-instruct", "type": "vlm", "state": "not-loaded", "max_context_length": 32_768},
    {
        **{"id": "meta-llama-3.1-8b-instruct", "object": "model", "type": "llm", "arch": "llama", "state": "loaded"},
        **{"max_context_length": 131_072, "loaded_context_length": 8_192, "capabilities": ["tool_use"]},
    },
    {"id": "text-embedding-nomic", "type": "embeddings", "max_context_length": 2_048},
]
QWEN3_INFO = {"general.architecture": "qwen3", "qwen3.context_length": 40_960}
SHOWN_BY_OLLAMA = {
    "qwen3:4b": {"model_info": QWEN3_INFO},
    "qwen3:8b": {"model_info": QWEN3_INFO, "capabilities": ["completion", "tools", "thinking"]},
    "gemma3:4b": {
        "parameters": 'stop                           "<end_of_turn>"\nnum_ctx                        16384',
        "model_info": {"general.architecture": "gemma3", "gemma3.context_length": 131_072},
        "capabilities": ["completion", "vision"],
    },
    "some-vectors": {"capabilities": ["embedding"], "model_info": {}},
}
OLLAMA = ("bge-m3:latest", "qwen3:8b", "gemma3:4b", "some-vectors", "qwen3:4b")
SERVERS = {
    # vllm/entrypoints/openai/models/protocol.py, ModelCard
    "vLLM": Server(
        listed(entry("openai/gpt-oss-20b", owned_by="vllm", root="openai/gpt-oss-20b", max_model_len=65_536)),
        {"openai/gpt-oss-20b": {**NATIVE_TEXT, "reasoning": True, "context_tokens": 65_536, "prefill": True}},
    ),
    # sglang/srt/entrypoints/openai/protocol.py, ModelCard
    "SGLang": Server(
        listed(entry("my-model", owned_by="sglang", root="my-model", max_model_len=4_000)),
        {"my-model": {**NATIVE_EYES, "provider": "sglang", "context_tokens": 4_000, "max_output_tokens": 1_000}},
    ),
    # openrouter.ai/docs/models, "Model Object Schema"
    "OpenRouter": Server(
        listed(
            entry(
                LLAMA,
                context_length=131_072,
                architecture=TEXT_ONLY,
                pricing={"prompt": "0.00000013", "completion": "0.00000039", "request": "0", "image": "0"},
                top_provider={"context_length": 100_000, "max_completion_tokens": 2_000, "is_moderated": False},
                supported_parameters=["temperature", "tools", "tool_choice", "response_format", "structured_outputs"],
            ),
            entry(
                ORACLE,
                context_length=8_000,
                architecture=HEARS,
                pricing={"prompt": "-1", "completion": "-1"},
                supported_parameters=["max_tokens", "reasoning", "include_reasoning"],
            ),
            entry(PAINTER, architecture=PAINTS, supported_parameters=["seed"]),
        ),
        {
            LLAMA: {
                **{**NATIVE_TEXT, "context_tokens": 100_000, "max_output_tokens": 2_000, "schemas": True},
                **{"price": Price(input=0.13, output=0.39), "temperature": True},
            },
            ORACLE: {
                **{"tools": "none", "image": True, "audio": True, "reasoning": True},
                **{"schemas": False, "temperature": False, "price": None},
            },
            PAINTER: {},
        },
    ),
    # huggingface.co/docs/inference-providers, "List models": GET https://router.huggingface.co/v1/models
    "Hugging Face router": Server(
        listed(
            entry(
                "zai-org/GLM-4.5V",
                architecture={"input_modalities": ["text", "image"], "output_modalities": ["text"]},
                providers=ROUTED,
            ),
            entry("acme/unpriced", providers=[{"status": "live", "pricing": {"input": 1, "output": 1}}, {}]),
        ),
        {
            "zai-org/GLM-4.5V": {
                **{**NATIVE_EYES, "context_tokens": 65_536, "reasoning": True},
                "price": Price(input=0.6, output=2),  # the highest, because the router chooses
            },
            "acme/unpriced": {"price": None},
        },
    ),
    # docs.mistral.ai/api, GET /v1/models
    "Mistral": Server(
        listed(
            entry("mistral-embed", capabilities=EMBEDS, max_context_length=8_192),
            entry(
                "mistral-medium-latest",
                capabilities={**CHATS, "function_calling": True, "fine_tuning": False, "vision": True},
                max_context_length=131_072,
            ),
            entry("open-mistral-7b", capabilities={**CHATS, "function_calling": False, "vision": False}),
        ),
        {
            "mistral-medium-latest": {**NATIVE_EYES, "context_tokens": 131_072},
            "open-mistral-7b": {"tools": "none", "image": False},
            "mistral-embed": {},
        },
    ),
    # console.groq.com/docs/api-reference, GET /openai/v1/models
    "Groq": Server(
        listed(
            entry("whisper-large-v3", owned_by="OpenAI", active=True, context_window=448),
            entry("old-model", owned_by="Acme", active=False, context_window=4_096),
            entry("llama-3.3-70b-versatile", active=True, context_window=131_072, max_completion_tokens=32_768),
        ),
        {
            "llama-3.3-70b-versatile": {**NATIVE_TEXT, "context_tokens": 131_072},
            "whisper-large-v3": {},
            "old-model": {},
        },
    ),
    # docs.together.ai/reference/models: the list stands alone
    "Together": Server(
        {
            "/v1/models": [
                entry("black-forest-labs/FLUX.1", type="image"),
                entry("moonshotai/Kimi-K2-Instruct", type="chat", pricing={"hourly": 0, "input": 1, "output": 3}),
                entry("acme/judge", type="moderation", context_length=4_096),
            ]
        },
        {
            "moonshotai/Kimi-K2-Instruct": {**NATIVE_TEXT, "price": Price(input=1, output=3)},
            "black-forest-labs/FLUX.1": {},
            "acme/judge": {},
        },
    ),
    # app.fireworks.ai, GET /inference/v1/models
    "Fireworks": Server(
        listed(
            entry(
                "accounts/fireworks/models/acme-1",
                **{"supports_chat": True, "supports_image_input": False, "supports_tools": True},
                context_length=40_960,
            )
        ),
        {"accounts/fireworks/models/acme-1": {**NATIVE_TEXT, "context_tokens": 40_960}},
    ),
    # lmstudio.ai/docs/developer/rest/endpoints, GET /api/v0/models
    "LM Studio": Server(
        {
            **listed(*map(entry, ("text-embedding-nomic", "qwen2-vl-7b-instruct", "meta-llama-3.1-8b-instruct"))),
            "/api/v0/models": {"object": "list", "data": LISTED_BY_LM_STUDIO},
        },
        {
            "qwen2-vl-7b-instruct": {**NATIVE_EYES, "provider": "lmstudio", "context_tokens": 32_768},
            "meta-llama-3.1-8b-instruct": {**NATIVE_TEXT, "context_tokens": 8_192},
            "text-embedding-nomic": {},
        },
    ),
    # github.com/ollama/ollama, docs/api.md and docs/openai.md
    "Ollama": Server(
        {
            **listed(*(entry(name, owned_by="library") for name in OLLAMA)),
            "/api/tags": {"models": [{"name": "qwen3:8b", "model": "qwen3:8b"}]},
            "/api/ps": {"models": [{"name": "qwen3:8b", "model": "qwen3:8b", "context_length": 32_768}]},
        },
        {
            "qwen3:8b": {**NATIVE_TEXT, "provider": "ollama", "reasoning": True, "context_tokens": 32_768},
            "gemma3:4b": {"tools": "none", "image": True, "reasoning": False, "context_tokens": 16_384},
            "qwen3:4b": {"context_tokens": 4_096},
            "bge-m3:latest": {},
            "some-vectors": {},
        },
        shown=SHOWN_BY_OLLAMA,
    ),
    # llama.cpp, tools/server/README.md, GET /v1/models and GET /props
    "llama.cpp": Server(
        {
            **listed(entry("gemma-3-4b.gguf", owned_by="llamacpp", meta={"n_ctx_train": 131_072})),
            "/props": {
                "default_generation_settings": {"n_ctx": 8_192},
                "modalities": {"vision": True, "audio": False},
                "chat_template": "{{ messages }}",
                "chat_template_caps": {"supports_tool_calls": False},
            },
        },
        {"gemma-3-4b.gguf": {"tools": "none", "image": True, "context_tokens": 8_192, "provider": "llama.cpp"}},
    ),
    # api-docs.deepseek.com/api/list-models, and most proxies
    "a server that tells names": Server(
        listed(entry("deepseek-chat", owned_by="deepseek"), entry("acme-9000", owned_by="acme")),
        {"deepseek-chat": NATIVE_TEXT, "acme-9000": NATIVE_EYES},
    ),
}


def handlers(server: Server) -> dict[str, Handler]:
    def show(asked: Asked) -> bytes:
        told = server.shown.get(json.loads(asked.body)["model"])
        return as_json(told) if told else answer(b"{}", status=404)

    paths: dict[str, Handler] = {path[1:]: lambda _, body=body: as_json(body) for path, body in server.bodies.items()}
    return {**paths, "api/show": show, "star": lambda _: answer(b"404 page not found", status=404)}


@pytest.mark.parametrize("named", SERVERS)
async def test_server_tells_what_its_models_can_do(named: str) -> None:
    server = SERVERS[named]
    async with site(None, **handlers(server)) as at:
        found = await discover(Endpoint(f"{at.url}/v1"))
    assert [spec.name for spec in found] == list(server.facts)  # those that do not chat come last
    for spec, facts in zip(found, server.facts.values(), strict=True):
        assert spec.id == f"vllm:{spec.name}"
        assert {name: getattr(spec, name) for name in facts} == facts
        assert 0 < spec.usual_output_tokens <= spec.max_output_tokens <= spec.context_tokens


ANSWER = """data: {"choices": [{"delta": {"content": "Yes."}, "finish_reason": "stop"}]}

data: {"choices": [], "usage": {"prompt_tokens": 1000000, "completion_tokens": 1000000, "total_tokens": 2000000}}

data: [DONE]

"""


async def test_typed_name_has_the_facts_of_its_server() -> None:
    paths = {
        **handlers(SERVERS["OpenRouter"]),
        "v1/chat/completions": lambda _: answer(ANSWER, kind="text/event-stream"),
    }
    async with site(None, **paths) as at:
        name, more = "meta-llama/llama-3.3-70b-instruct", {"provider": "openrouter", "base_url": f"{at.url}/v1"}
        first = await Agent(name, api_key="k", **more).ask("Yes?")
        agent = Agent(f"{name}:free", api_key="k", **more)
        second = await agent.ask("Yes?")
        given = await Agent(name, api_key="k", capabilities={"context_tokens": 9_000}, **more).ask("Yes?")
        unlisted = await Agent("acme/new", api_key="k", **more).ask("Yes?")
    assert [one.cost for one in (first, second, given, unlisted)] == pytest.approx([0.52, 0.52, None, None])
    assert agent.connection.spec.context_tokens == 100_000
    assert agent.connection.spec.id == f"openrouter:{name}:free"
    assert [one.target for one in at.asked if one.method == "GET"] == ["/v1/models"], "the list is kept"
    assert [json.loads(one.body)["model"] for one in at.asked if one.method == "POST"][1] == f"{name}:free"


async def test_server_without_a_list_is_asked_to_answer_all_the_same() -> None:
    async with site(None, **{"v1/chat/completions": lambda _: answer(ANSWER, kind="text/event-stream")}) as at:
        agent = Agent("acme/new", provider="openrouter", base_url=f"{at.url}/v1", api_key="k")
        assert [(await agent.ask("Yes?")).text for _ in range(2)] == ["Yes."] * 2
    assert [one.target for one in at.asked].count("/v1/models") == 1


async def test_certificates_are_read_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    real, reading = ssl.SSLContext.load_verify_locations, set[int]()

    def load(*args: Any, **more: Any) -> None:
        reading.add(get_ident())
        real(*args, **more)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", load)
    tls_context.cache_clear()
    async with site(None, **handlers(SERVERS["SGLang"])) as at:
        assert await discover(Endpoint(f"{at.url}/v1"))
    assert reading
    assert get_ident() not in reading


async def test_no_proxy_is_asked_for_a_local_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with site(None, **handlers(SERVERS["SGLang"])) as at:
        assert await discover(Endpoint(f"{at.url}/v1"))


ADDRESSES = {
    "ollama": "http://127.0.0.1:11434/v1",
    "lmstudio": "http://127.0.0.1:1234/v1",
    "sglang": "http://127.0.0.1:30000/v1",
    "openrouter": "https://openrouter.ai/api/v1",
    "groq": "https://api.groq.com/openai/v1",
    "deepseek": "https://api.deepseek.com/v1",
    "mistral": "https://api.mistral.ai/v1",
    "together": "https://api.together.xyz/v1",
    "fireworks": "https://api.fireworks.ai/inference/v1",
}


@pytest.mark.parametrize("provider", ADDRESSES)
def test_provider_needs_only_its_name(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = load_catalog().providers[provider]
    monkeypatch.delenv(f"{provider.upper()}_BASE_URL", raising=False)
    monkeypatch.setenv(kind.key_names[0], "k3y")
    agent = Agent(f"{provider}:acme-9000")
    endpoint = getattr(agent.connection, "endpoint")  # noqa: B009 - not part of the contract
    assert endpoint == Endpoint(ADDRESSES[provider], "k3y")
    monkeypatch.setenv(f"{provider.upper()}_BASE_URL", "http://elsewhere/v1")
    assert getattr(Agent(f"{provider}:acme-9000").connection, "endpoint").base_url == "http://elsewhere/v1"  # noqa: B009


def test_azure_needs_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_BASE_URL", raising=False)
    with pytest.raises(UnknownModel, match="AZURE_BASE_URL"):
        Agent("azure:my-deployment")


NAMES: dict[str, tuple[bool, bool]] = {
    "openai/gpt-oss-120b": (False, True),
    "gpt-oss:20b": (False, True),
    "meta-llama/Llama-3.3-70B-Instruct": (False, False),
    "llama3.1:8b": (False, False),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": (True, False),
    "llama3.2-vision:11b": (True, False),
    "deepseek-ai/DeepSeek-R1": (False, True),
    "deepseek-ai/DeepSeek-V3.1": (False, False),
    "deepseek-chat": (False, False),
    "mistralai/Mistral-7B-Instruct-v0.3": (False, False),
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": (True, False),
    "mistral-large-latest": (True, False),  # nobody knows
    "zai-org/GLM-4.6": (False, True),
    "zai-org/GLM-4.5V": (True, True),
    "moonshotai/Kimi-K2-Instruct": (False, False),
    "moonshotai/Kimi-K2-Thinking": (False, True),
    "google/gemma-3-27b-it": (True, False),
    "gemma3:1b": (False, False),
    "qwen3:8b": (False, True),
    "qwen2.5vl:7b": (True, False),
    "microsoft/phi-4": (False, False),
    "CohereLabs/c4ai-command-r-plus": (False, False),
    "ibm-granite/granite-4.0-h-small": (False, False),
    "acme/Unheard-Of-9000": (True, False),
}
"""Common names, and whether they take images and reason."""


def assert_able(spec: ModelSpec, name: str) -> None:
    assert spec.tools == "native"
    assert (spec.image, spec.reasoning) == NAMES[name]


@pytest.mark.parametrize("name", NAMES)
def test_no_common_name_loses_abilities(name: str) -> None:
    for provider in load_catalog().providers.values():
        if provider.open_weights:
            assert_able(load_catalog().find(name, provider.id), name)
            assert_able(described({"id": name}, provider.id, ""), name)
