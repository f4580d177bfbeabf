"""The models that an OpenAI-compatible server lists, as `ModelSpec`s. A model's name stands in for missing facts."""

import re
from dataclasses import dataclass, field, replace
from typing import Any, cast
from urllib.parse import urlsplit

import httpx2

from agent.errors import ProviderError
from agent.i18n import _
from agent.models.catalog import ModelSpec, ToolSupport, guess, longest_answer
from agent.models.families import LONGEST_NAME, can_chat
from agent.providers import Endpoint
from agent.providers.base_url import without_login


async def discover(endpoint: Endpoint, *, seconds: float = 5.0) -> tuple[ModelSpec, ...]:
    """Return the models of `endpoint`, with ids `vllm:<name>`. llama.cpp is also asked for its /props.

    They are in the server's order, but those that do not chat come last: the first model is the default.

    Raises `ProviderError`: `key` (401, 403), `connection`, `malformed` (not such a server, or no model), `server`.
    """
    host = urlsplit(endpoint.base_url).hostname or ""
    headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    # A proxy from the environment must not get between us and a server on this machine.
    async with httpx2.AsyncClient(
        headers=headers, timeout=seconds, trust_env=host not in ("localhost", "127.0.0.1", "::1")
    ) as client:
        where = without_login(endpoint.base_url)
        listing = await _ask(client, f"{endpoint.base_url}/models", where)
        entries = [entry for entry in _items(listing.get("data")) if _is_name(entry.get("id"))]
        entries.sort(key=lambda entry: not _chats(entry))
        if not entries:
            raise ProviderError(_("The server at {where} answers, but serves no model.", where=where), kind="malformed")
        if entries[0].get("owned_by") != "llamacpp":
            return tuple(_vllm_spec(entry) for entry in entries)
        props = await _ask(client, endpoint.base_url.removesuffix("/v1") + "/props", where)
        return tuple(_llama_spec(entry, props) for entry in entries)


async def _ask(client: httpx2.AsyncClient, url: str, where: str) -> dict[str, Any]:
    try:
        answer = await client.get(url)
        body = answer.json() if answer.status_code == 200 else None
    except (httpx2.TransportError, httpx2.InvalidURL) as error:
        raise ProviderError(
            _("The model server at {where} cannot be reached.", where=where), kind="connection"
        ) from error
    except ValueError as error:
        raise ProviderError(
            _("What answers at {where} is not a model server.", where=where), kind="malformed"
        ) from error
    status = answer.status_code
    if status in (401, 403):
        raise ProviderError(
            _("The key for the model server at {where} was rejected. Tell the owner of this server.", where=where),
            kind="key",
            status=status,
        )
    if status >= 500:
        raise ProviderError(
            _("The model server at {where} failed (HTTP {status}).", where=where, status=status),
            kind="server",
            status=status,
        )
    if not isinstance(body, dict):
        raise ProviderError(
            _(
                "What answers at {where} is not an OpenAI-compatible server (HTTP {status} for /models).",
                where=where,
                status=status,
            ),
            kind="malformed",
            status=status,
        )
    return cast(dict[str, Any], body)


def _vllm_spec(entry: dict[str, Any]) -> ModelSpec:
    is_vllm = entry.get("owned_by") == "vllm"
    source = _("a vLLM server") if is_vllm else _("an OpenAI-compatible server")
    spec = guess(entry["id"], "vllm", context_tokens=_positive_int(entry.get("max_model_len"), 32_768), source=source)
    return replace(spec, prefill=is_vllm)


def _llama_spec(entry: dict[str, Any], props: dict[str, Any]) -> ModelSpec:
    answers = _LlamaAnswers(entry, props)
    return ModelSpec(
        id=f"vllm:{entry['id']}",
        name=entry["id"],
        label=entry["id"].rsplit("/", 1)[-1],
        provider="llama.cpp",
        image=answers.image,
        audio=answers.audio,
        reasoning=answers.reasoning,
        prefill=True,
        tools=answers.tools,
        context_tokens=answers.context,
        max_output_tokens=longest_answer(answers.context),
        source=_("a llama.cpp server"),
    )


@dataclass(frozen=True, slots=True)
class _LlamaAnswers:
    """The answers of llama.cpp to /models and /props."""

    entry: dict[str, Any] = field(repr=False)
    props: dict[str, Any] = field(repr=False)

    @property
    def image(self) -> bool:
        return bool(_table(self.props, "modalities").get("vision")) or "image" in self._inputs

    @property
    def audio(self) -> bool:
        return bool(_table(self.props, "modalities").get("audio")) or "audio" in self._inputs

    @property
    def reasoning(self) -> bool:
        template = str(self.props.get("chat_template") or "")
        return "enable_thinking" in template or "<think>" in template

    @property
    def tools(self) -> ToolSupport:
        # If its template has no tools, llama.cpp drops them silently; a JSON schema still binds any model.
        return "native" if _table(self.props, "chat_template_caps").get("supports_tool_calls") else "emulated"

    @property
    def context(self) -> int:
        """The number of tokens of one slot."""
        per_slot = _table(self.props, "default_generation_settings").get("n_ctx")
        return _positive_int(per_slot, _positive_int(_table(self.entry, "meta").get("n_ctx"), 4096))

    @property
    def _inputs(self) -> list[Any]:
        inputs = _table(self.entry, "architecture").get("input_modalities")
        return cast(list[Any], inputs) if isinstance(inputs, list) else []


def _is_name(value: object) -> bool:
    """Return True for the name of one model. Gateways list patterns, too, such as "openai/*"."""
    return isinstance(value, str) and 0 < len(value.strip()) <= LONGEST_NAME and "*" not in value


def _chats(entry: dict[str, Any]) -> bool:
    kinds = " ".join(str(entry.get(name, "")) for name in ("type", "mode", "task")).lower()
    return can_chat(entry["id"]) and not re.search(r"embed|rerank|image|audio|speech|transcri|moderation", kinds)


def _items(value: object) -> list[dict[str, Any]]:
    found = cast(list[object], value) if isinstance(value, list) else []
    return [cast(dict[str, Any], item) for item in found if isinstance(item, dict)]


def _table(value: dict[str, Any], name: str) -> dict[str, Any]:
    found = value.get(name)
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}


def _positive_int(value: object, default: int) -> int:
    return value if isinstance(value, int) and value > 0 else default
