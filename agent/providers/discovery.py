"""The models that an OpenAI-compatible server lists, as `ModelSpec`s, with all that the server tells about them."""

import asyncio
import re
from dataclasses import replace
from time import monotonic
from typing import Any, cast
from urllib.parse import urlsplit

import httpx2

from agent.errors import ProviderError
from agent.fetch import tls_context
from agent.i18n.text import _
from agent.models.catalog import LONGEST_ANSWER, ModelSpec, Price, carried, load_catalog, longest_answer
from agent.models.families import LONGEST_NAME, VARIANT, can_chat, short_name
from agent.providers.connection import Endpoint
from agent.providers.errors import broken_key, is_broken_key, without_login

_MOST_ASKED = 100
"""Models of an Ollama that are asked for one by one. The others go by their names."""
_PATIENCE_SECONDS = 2.0
"""Seconds that a first message waits for what the server tells about its model."""
_LIST_SECONDS, _RETRY_SECONDS, _MOST_SERVERS = 3600.0, 60.0, 100
_listed: dict[str, tuple[float, dict[str, ModelSpec]]] = {}
"""The models that servers listed, and the moment to ask again, by base URL."""
_SAYS_MORE = {
    "max_model_len",
    "context_length",
    "context_window",
    "max_context_length",
    "supported_parameters",
    "providers",
}


async def discover(endpoint: Endpoint, *, provider: str = "vllm", seconds: float = 5.0) -> tuple[ModelSpec, ...]:
    """Return the models of `endpoint`, with ids `<provider>:<name>`.

    llama.cpp, Ollama and LM Studio tell what their models can do at other addresses, which are asked, too. The models
    are in the server's order, but those that do not chat come last: the first model is the default.

    Raises `ProviderError`: `key` (401, 403, or no key at all), `connection`, `malformed` (not such a server, or no
    model), `server`.
    """
    if is_broken_key(endpoint.api_key):
        raise ProviderError(broken_key(load_catalog().providers[provider]).text, kind="key")
    where = without_login(endpoint.base_url)
    try:
        parts = urlsplit(endpoint.base_url)
        host, _port = parts.hostname or "", parts.port
    except ValueError as error:  # brackets around what is no address, or no port
        raise _unreachable(where) from error
    headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    # A proxy from the environment must not get between us and a server on this machine.
    certificates = await asyncio.to_thread(tls_context)
    async with httpx2.AsyncClient(
        headers=headers, timeout=seconds, verify=certificates, trust_env=host not in ("localhost", "127.0.0.1", "::1")
    ) as client:
        listing = await _ask(client, f"{endpoint.base_url}/models", where)
        entries = [entry for entry in _items(listing.get("data")) if _is_name(entry.get("id"))]
        if not entries:
            raise ProviderError(_("The server at {where} answers, but serves no model.", where=where), kind="malformed")
        server, entries = await _with_details(client, endpoint.base_url, entries, where)
    entries.sort(key=lambda entry: not _chats(entry))
    return tuple(described(entry, provider, server) for entry in entries)


async def look_up(spec: ModelSpec, endpoint: Endpoint) -> ModelSpec:
    """Return an assumed model as its server describes it, or unchanged if the server does not list it or answer.

    The list of a server is kept for `_LIST_SECONDS`.
    """
    if not spec.assumed or spec.dialect != "chat":
        return spec
    until, listed = _listed.get(endpoint.base_url, (0.0, {}))
    if until < monotonic():
        try:
            found = await discover(endpoint, provider=spec.provider, seconds=_PATIENCE_SECONDS)
        except ProviderError:
            found = ()
        listed = {one.name: one for one in found}
        if len(_listed) >= _MOST_SERVERS:
            _listed.clear()
        _listed[endpoint.base_url] = monotonic() + (_LIST_SECONDS if found else _RETRY_SECONDS), listed
    one = listed.get(spec.name) or listed.get(VARIANT.sub("", spec.name))
    return replace(one, id=spec.id, name=spec.name, label=spec.label, source=spec.source) if one else spec


def described(entry: dict[str, Any], provider: str, server: str) -> ModelSpec:
    """Return the model that a server describes in an entry of its list, with the id `<provider>:<name>`.

    What the entry does not tell comes from the catalogue, or else from the name. `server` is the id of the provider
    that the server is one of, or "" for a server that does not tell.
    """
    catalog, name = load_catalog(), entry["id"]
    kind = catalog.providers[server or provider]
    known, told = catalog.find(name, kind.id), _facts(entry)
    context = told.pop("context_tokens", 4096 if server == "llama.cpp" else 32_768)
    most = max(16, min(told.pop("max_output_tokens", LONGEST_ANSWER), longest_answer(context)))
    described = replace(
        known,
        id=f"{provider}:{name}",
        name=name,
        label=short_name(name),
        source=_source(server) or kind.label,
        licence="",
        menu=False,
        assumed=False,
        prefill=server in ("vllm", "llama.cpp"),
        context_tokens=context,
        max_output_tokens=most,
        usual_output_tokens=min(1_024, most),
        **told,
    )
    return carried(replace(described, always_reasons=described.always_reasons and described.reasoning), kind)


def _source(server: str) -> str:
    match server:
        case "vllm":
            return _("a vLLM server")
        case "llama.cpp":
            return _("a llama.cpp server")
        case "":
            return _("an OpenAI-compatible server")
        case _:
            return ""


async def _with_details(
    client: httpx2.AsyncClient, base_url: str, entries: list[dict[str, Any]], where: str
) -> tuple[str, list[dict[str, Any]]]:
    """Return the id of the provider that the server is one of, and the entries with what it tells elsewhere."""
    owner, root = entries[0].get("owned_by"), base_url.removesuffix("/v1")
    if owner == "llamacpp":
        props = await _ask(client, f"{root}/props", where)
        return "llama.cpp", [_llama_entry(entry, props) for entry in entries]
    if owner in ("vllm", "sglang"):
        return owner, entries
    hosted = next((one.id for one in load_catalog().providers.values() if one.base_url == base_url), "")
    if hosted or any(_SAYS_MORE & entry.keys() for entry in entries):
        return hosted, entries
    if "models" in await _ask_quietly(client, f"{root}/api/tags"):
        shown = await asyncio.gather(
            *(_ask_quietly(client, f"{root}/api/show", model=entry["id"]) for entry in entries[:_MOST_ASKED])
        )
        details = [*map(_ollama_details, shown), *[{}] * len(entries)]
        loaded = _items((await _ask_quietly(client, f"{root}/api/ps")).get("models"))
        lengths = {
            one.get("name"): {"context_length": one["context_length"]} for one in loaded if "context_length" in one
        }
        return "ollama", [
            {**entry, **more, **lengths.get(entry["id"], {})} for entry, more in zip(entries, details, strict=False)
        ]
    more = {
        str(one.get("id")): one for one in _items((await _ask_quietly(client, f"{root}/api/v0/models")).get("data"))
    }
    if more:
        return "lmstudio", [{**entry, **more.get(entry["id"], {})} for entry in entries]
    return "", entries


async def _ask_quietly(client: httpx2.AsyncClient, url: str, **body: str) -> dict[str, Any]:
    """Return what a server may tell at another address of its own; {} if it does not."""
    try:
        answer = await (client.post(url, json=body) if body else client.get(url))
        told: object = answer.json() if answer.status_code == 200 else None
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, RecursionError):
        return {}
    return cast(dict[str, Any], told) if isinstance(told, dict) else {}


async def _ask(client: httpx2.AsyncClient, url: str, where: str) -> dict[str, Any]:
    try:
        answer = await client.get(url)
        body = answer.json() if answer.status_code == 200 else None
    except (httpx2.TransportError, httpx2.InvalidURL) as error:
        raise _unreachable(where) from error
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
    if isinstance(body, list):  # Together sends the list alone
        return {"data": body}
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


def _unreachable(where: str) -> ProviderError:
    return ProviderError(_("The model server at {where} cannot be reached.", where=where), kind="connection")


# --- what the entries tell ------------------------------------------------------------------------------------------


def _facts(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of `ModelSpec` that an entry of a list tells, whichever server wrote it."""
    inputs = _words(_table(entry, "architecture").get("input_modalities"))
    parameters = _words(entry.get("supported_parameters"))
    abilities = _words(entry.get("capabilities"))
    is_complete = "completion" in abilities  # Ollama's list has all abilities, LM Studio's only some
    flags = {**entry, **_table(entry, "capabilities")}
    behind = [one for one in _items(entry.get("providers")) if one.get("status", "live") == "live"]
    tools = _first(
        flags.get("function_calling"),
        flags.get("supports_tools"),
        "tools" in parameters if parameters else None,
        "tools" in abilities if is_complete else None,
        "tool_use" in abilities or None,
        any(one.get("supports_tools") for one in behind) if behind else None,
    )
    facts: dict[str, Any] = {
        "tools": None if tools is None else "native" if tools else "none",
        "image": _first(
            flags.get("vision"),
            flags.get("supports_image_input"),
            "image" in inputs if inputs else None,
            "vision" in abilities if is_complete else None,
            {"vlm": True, "llm": False}.get(str(entry.get("type"))),
        ),
        "audio": _first(flags.get("audio"), "audio" in inputs if inputs else None),
        "video": "video" in inputs if inputs else None,
        "reasoning": _first(
            flags.get("reasoning"),
            "reasoning" in parameters if parameters else None,
            "thinking" in abilities if is_complete else None,
        ),
        "schemas": bool(parameters & {"structured_outputs", "response_format"}) if parameters else None,
        "temperature": "temperature" in parameters if parameters else None,
        "context_tokens": _context(entry, behind),
        "max_output_tokens": _int(entry.get("max_completion_tokens"))
        or _int(_table(entry, "top_provider").get("max_completion_tokens")),
        "price": _price(_table(entry, "pricing")) or _price_behind(behind),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _context(entry: dict[str, Any], behind: list[dict[str, Any]]) -> int | None:
    """Return the tokens of the context: of the model as it is loaded, else of the model. Of a router, the smallest."""
    names = ("loaded_context_length", "max_model_len", "max_context_length", "context_window", "context_length")
    found = next(filter(None, (_int(entry.get(name)) for name in names)), None)
    smaller = [
        _int(_table(entry, "top_provider").get("context_length")),
        *(_int(o.get("context_length")) for o in behind),
    ]
    return min((one for one in (found, *smaller) if one), default=None)


def _price(pricing: dict[str, Any]) -> Price | None:
    """Return the price: OpenRouter tells it for a token and in text, Together for a million tokens."""
    names, factor = ("prompt", "completion", "input_cache_read"), 1e6
    if "prompt" not in pricing:
        names, factor = ("input", "output", "cached_input"), 1.0
    try:
        given = [float(pricing[name]) * factor if name in pricing else None for name in names]
    except (TypeError, ValueError):
        return None
    (prompt, answer, cached) = (None if one is None else round(one, 6) for one in given)
    if prompt is None or answer is None or min(prompt, answer, cached or 0) < 0:  # -1: it depends on the model
        return None
    return Price(input=prompt, output=answer, cached=cached)


def _price_behind(servers: list[dict[str, Any]]) -> Price | None:
    """Return the highest price of the servers behind a router, which chooses one of them; None if one tells none."""
    prices = [_price(_table(one, "pricing")) for one in servers]
    known = [price for price in prices if price is not None]
    if not known or len(known) < len(prices):
        return None
    return Price(input=max(one.input for one in known), output=max(one.output for one in known))


OLLAMA_CONTEXT = 4_096


def _ollama_details(shown: dict[str, Any]) -> dict[str, Any]:
    """Return what Ollama's /api/show tells.

    Without a `num_ctx`, Ollama chooses a length when it loads the model, which /api/ps tells from then on, and drops
    the beginning of a longer prompt. `OLLAMA_CONTEXT` is its smallest choice.
    """
    own = re.search(r"^num_ctx\s{1,100}(\d{1,9})", str(shown.get("parameters") or ""), re.MULTILINE)
    lengths = (value for name, value in _table(shown, "model_info").items() if name.endswith(".context_length"))
    context = int(own[1]) if own else min(_int(next(lengths, None)) or OLLAMA_CONTEXT, OLLAMA_CONTEXT)
    abilities = {"capabilities": shown["capabilities"]} if _words(shown.get("capabilities")) else {}
    return {**abilities, "context_length": context}


def _llama_entry(entry: dict[str, Any], props: dict[str, Any]) -> dict[str, Any]:
    """Return an entry of llama.cpp in the words of the others. A template without tools drops them silently."""
    media, template = _table(props, "modalities"), str(props.get("chat_template") or "")
    inputs = _words(_table(entry, "architecture").get("input_modalities"))
    per_slot = _int(_table(props, "default_generation_settings").get("n_ctx"))
    return {
        "id": entry["id"],
        "vision": bool(media.get("vision")) or "image" in inputs,
        "audio": bool(media.get("audio")) or "audio" in inputs,
        "reasoning": "enable_thinking" in template or "<think>" in template,
        "supports_tools": bool(_table(props, "chat_template_caps").get("supports_tool_calls")),
        "context_length": per_slot or _int(_table(entry, "meta").get("n_ctx")),
    }


def _is_name(value: object) -> bool:
    """Return True for the name of one model. Gateways list patterns, too, such as "openai/*"."""
    return isinstance(value, str) and 0 < len(value.strip(" :")) <= len(value) <= LONGEST_NAME and "*" not in value


def _chats(entry: dict[str, Any]) -> bool:
    kinds = " ".join(str(entry.get(name, "")) for name in ("type", "mode", "task")).lower()
    if not can_chat(entry["id"]) or re.search(r"embed|rerank|image|audio|speech|transcri|moderation", kinds):
        return False
    abilities, outputs = (
        _words(entry.get("capabilities")),
        _words(_table(entry, "architecture").get("output_modalities")),
    )
    flags = (_table(entry, "capabilities").get("completion_chat"), entry.get("supports_chat"), entry.get("active"))
    only_vectors = "embedding" in abilities and "completion" not in abilities
    return False not in flags and not only_vectors and (not outputs or "text" in outputs)


def _items(value: object) -> list[dict[str, Any]]:
    found = cast(list[object], value) if isinstance(value, list) else []
    return [cast(dict[str, Any], item) for item in found if isinstance(item, dict)]


def _table(value: dict[str, Any], name: str) -> dict[str, Any]:
    found = value.get(name)
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}


def _words(value: object) -> frozenset[str]:
    found = cast(list[object], value) if isinstance(value, list) else []
    return frozenset(item for item in found if isinstance(item, str))


def _first(*told: object) -> bool | None:
    """Return the first that is told."""
    return next((one for one in told if isinstance(one, bool)), None)


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
