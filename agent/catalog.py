"""The one table of models, `configs/models.toml`: who serves them, what each can take, its limits, price and end.

A model is found by `provider:name`, by a bare name that the table has, or by any name together with its provider.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from agent.errors import ConfigError, UnknownModel

TABLE = Path(__file__).resolve().parent.parent / "configs" / "models.toml"
LONGEST_ANSWER = 8192

Dialect = Literal["chat", "responses", "messages", "generate"]
ToolSupport = Literal["native", "router", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSpec:
    """Who serves models, and how they are spoken to.

    `key_names` are the environment variables that may hold the key, `keys_at` is where people get one (both empty
    where no key is needed). `base_url` is "" where each user has a server of their own. `open_weights`: what a model
    can take is told by its checkpoint's name (see `agent.checkpoints`).
    """

    id: str
    label: str
    dialect: Dialect
    base_url: str = ""
    key_names: tuple[str, ...] = ()
    keys_at: str = ""
    aliases: tuple[str, ...] = ()
    open_weights: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """US dollars for a million tokens; `cached` is for those of the prompt that the provider had kept."""

    input: float
    output: float
    cached: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One model that can be chosen.

    `id` is unique in the menu (`vllm:Qwen/Qwen3-8B`); `name` is what its server calls it. `context_tokens` is for
    prompt and answer together, `usual_output_tokens` what an answer is allowed where nobody says more. `tools` is
    "router" where only the JSON-schema router works (see providers/router.py). `always_reasons`: it cannot be turned
    off. `needs_audio`: a request without any sound is refused. `temperature`: it may be set. `retired_on` may lie
    ahead. `source` and `licence` are shown to people. `defaults` are sampling settings that the model needs to do its
    best. `menu`: it is offered without being asked for.
    """

    id: str
    name: str
    label: str
    provider: str
    dialect: Dialect = "chat"
    image: bool = False
    audio: bool = False
    reasoning: bool = False
    always_reasons: bool = False
    needs_audio: bool = False
    temperature: bool = True
    tools: ToolSupport = "native"
    context_tokens: int = 32_768
    max_output_tokens: int = 4_096
    usual_output_tokens: int = 1_024
    price: Price | None = None
    retired_on: date | None = None
    replaced_by: str = ""
    menu: bool = False
    source: str = ""
    licence: str = ""
    defaults: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What the name of a checkpoint tells: vLLM's /v1/models does not say what a model can take.

    `tool_parser` and `reasoning_parser` are the values that `vllm serve` needs for it, None where it needs none.
    """

    image: bool = False
    audio: bool = False
    tool_parser: str | None = None
    reasoning_parser: str | None = None


def family(name: str) -> Family:
    """The family of a checkpoint called `name` (a hub id or a folder). Unknown names get text only."""
    short = name.rstrip("/").rsplit("/", 1)[-1].lower()
    omni = "omni" in short
    image = omni or re.search(r"(?:^|[-_.])vl(?:[-_.]|$)|qwen3vl", short) is not None
    qwen3 = re.match(r"qwen3(\.\d+)?(?:[-_]|vl|$)", short)
    if qwen3 is None:
        return Family(image=image, audio=omni, tool_parser="hermes" if short.startswith("qwen2") else None)
    coder = "coder" in short
    # Base checkpoints, embedders and rerankers do not chat; they are left without tools and reasoning.
    chats = not any(word in short for word in ("base", "embedding", "reranker", "asr", "tts"))
    newer = qwen3[1] is not None  # 3.5 and later: images from the start, tool calls in XML
    thinks = chats and not coder and ("instruct" not in short or "thinking" in short)
    return Family(
        image=image or (newer and chats),
        audio=omni,
        tool_parser=("qwen3_coder" if coder or newer else "hermes") if chats else None,
        reasoning_parser="qwen3" if thinks else None,
    )


def guess(name: str, provider: str, *, context_tokens: int = 32_768, source: str = "") -> ModelSpec:
    """What a model of that name can take, where nobody says more."""
    known = family(name)
    return ModelSpec(
        id=f"{provider}:{name}",
        name=name,
        label=name.rstrip("/").rsplit("/", 1)[-1],
        provider=provider,
        image=known.image,
        audio=known.audio,
        reasoning=known.reasoning_parser is not None,
        tools="native" if known.tool_parser else "router",
        context_tokens=context_tokens,
        max_output_tokens=longest_answer(context_tokens),
        source=source,
    )


def longest_answer(context: int) -> int:
    """The longest answer to ask for, leaving most of the context to the conversation."""
    return max(16, min(LONGEST_ANSWER, context // 4))


@dataclass(frozen=True, slots=True)
class Catalog:
    """The table, read: providers by id, models by id, and what is assumed of a provider's other models."""

    providers: Mapping[str, ProviderSpec]
    models: Mapping[str, ModelSpec]
    assumed: Mapping[str, Mapping[str, Any]]

    def find(self, model: str, provider: str | None = None) -> ModelSpec:
        """The model called `provider:name`, or by a bare name of the table, or by any name of that `provider`.

        Raises `UnknownModel` with what to write instead.
        """
        prefix, colon, rest = model.partition(":")
        if provider is None and colon and rest and (found := self.provider(prefix)):
            provider, model = found.id, rest
        if provider is None:
            known = [spec for spec in self.models.values() if spec.name == model]
            if not known:
                raise UnknownModel(
                    f"No model named {model!r} is known here. Say who serves it, as in "
                    f"{'openai'}:{model}; providers are {', '.join(self.providers)}."
                )
            return known[0]
        found = self.provider(provider)
        if found is None:
            raise UnknownModel(f"No provider named {provider!r} is known; there are {', '.join(self.providers)}.")
        return self.models.get(f"{found.id}:{model}") or self._assume(found, model)

    def provider(self, name: str) -> ProviderSpec | None:
        """The provider of that id or alias."""
        return next((one for one in self.providers.values() if name in (one.id, *one.aliases)), None)

    def menu(self) -> tuple[ModelSpec, ...]:
        """The models offered without being asked for."""
        return tuple(spec for spec in self.models.values() if spec.menu)

    def _assume(self, provider: ProviderSpec, name: str) -> ModelSpec:
        if provider.open_weights:
            return guess(name, provider.id)
        given: dict[str, Any] = {
            "label": name.rsplit("/", 1)[-1],
            "source": provider.label,
            **self.assumed[provider.id],
        }
        return ModelSpec(id=f"{provider.id}:{name}", name=name, provider=provider.id, dialect=provider.dialect, **given)


@cache
def load(path: Path = TABLE) -> Catalog:
    """The table of this program, read once. Raises `ConfigError` naming the entry that is wrong."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path.name} cannot be read: {error}") from error
    providers: dict[str, ProviderSpec] = {}
    assumed: dict[str, Mapping[str, Any]] = {}
    models: dict[str, ModelSpec] = {}
    for id_, given in table["providers"].items():
        assumed[id_] = given.pop("assumed", {})
        providers[id_] = TypeAdapter(ProviderSpec).validate_python({**given, "id": id_})
    for family in table["models"]:
        provider = providers[family.pop("provider")]
        names = family.pop("names")
        price = family.pop("price", None)
        for name in names:
            given: dict[str, Any] = {
                "label": name.rsplit("/", 1)[-1],
                "source": provider.label,
                "dialect": provider.dialect,
                **family,
                "price": Price(**price) if price else None,
            }
            id_ = f"{provider.id}:{name}"
            models[id_] = ModelSpec(id=id_, name=name, provider=provider.id, **given)
    return Catalog(providers, models, assumed)
