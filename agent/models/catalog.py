"""The one table of models, `configs/models.toml`: who serves them, what each can take, its limits, price and end.

A model is found by `provider:name`, by a bare name that the table has, or by any name together with its provider.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import to_json

from agent.errors import ConfigError, UnknownModel
from agent.i18n import LocalizedText
from agent.models.families import check_name, family

TABLE = Path(__file__).resolve().parents[2] / "configs" / "models.toml"
LONGEST_ANSWER = 8192

_T = TypeVar("_T")
Dialect = Literal["chat", "responses", "messages", "generate"]
ToolSupport = Literal["native", "router", "none"]

_NO_OTHERS = ConfigDict(extra="forbid")
"""A field that nobody reads is a slip of the pen; without this it would be passed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSpec:
    """Who serves models, and how they are spoken to.

    `key_names` are the environment variables that may hold the key, `keys_at` is where people get one (both empty
    where no key is needed). `base_url` is "" where each user has a server of their own. `open_weights`: what a model
    can take is told by its checkpoint's name (see `agent.models.families`).

    What it carries: `image_types` and `audio_types` are media types, none where it carries none, whatever a model
    could take. Limits are for one request, those of bytes before base64; `max_image_bytes`, `max_image_side` (pixels)
    and `max_audio_bytes` are for one item, `max_audio_seconds` and `max_media_bytes` for all of them. 0: none is known.
    `image_side` is the longest side that its models look at: a larger picture costs more and shows them no more.
    """

    __pydantic_config__ = _NO_OTHERS

    id: str
    label: str
    dialect: Dialect
    base_url: str = ""
    key_names: tuple[str, ...] = ()
    keys_at: str = ""
    aliases: tuple[str, ...] = ()
    open_weights: bool = False
    image_types: tuple[str, ...] = ()
    max_images: int = 0
    max_image_bytes: int = 0
    max_image_side: int = 0
    image_side: int = 1_568
    audio_types: tuple[str, ...] = ()
    max_audios: int = 0
    max_audio_bytes: int = 0
    max_audio_seconds: int = 0
    max_media_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """US dollars for a million tokens.

    `cached` is for those of the prompt that the provider had kept, `audio` for those of it that are sound, None: as
    the others. `up_to`: requests with a longer prompt (tokens) cost more than these figures say; 0: none do.
    """

    __pydantic_config__ = _NO_OTHERS

    input: float
    output: float
    cached: float | None = None
    audio: float | None = None
    up_to: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One model that can be chosen.

    `id` is unique in the menu (`vllm:Qwen/Qwen3-8B`); `name` is what its server calls it. `context_tokens` is for
    prompt and answer together, `usual_output_tokens` what an answer is allowed where nobody says more. `tools` is
    "router" where only the JSON-schema router works (see providers/router.py). `always_reasons`: it cannot be turned
    off. `needs_audio`: a request without any sound is refused. `temperature`: it may be set. `retired_on` may lie
    ahead; `retired`: gone since an unknown day. `replaced_by` is a name of the same provider. `source` and `licence`
    are shown. `defaults` are sampling settings it needs, `examples` exchanges before each request. `menu`: is offered.
    """

    __pydantic_config__ = _NO_OTHERS

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
    retired: bool = False
    retired_on: date | None = None
    replaced_by: str = ""
    menu: bool = False
    source: str = ""
    licence: str = ""
    defaults: tuple[tuple[str, float], ...] = ()
    examples: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        check_name(self.name)

    def advice(self, today: date) -> tuple[LocalizedText, ...]:
        """What those are told who choose a model that is shut down or will be; nothing where no end is known."""
        if not self.retired and self.retired_on is None:
            return ()
        ended = "ended" if self.retired_on is None else "ends_on" if self.retired_on > today else "ended_on"
        said = [LocalizedText(ended, {"model": self.label, "day": str(self.retired_on)})]
        if self.replaced_by:
            said.append(LocalizedText("replaced", {"model": self.replaced_by}))
        return (*said, LocalizedText("can_be_tried"))


def guess(name: str, provider: str, *, context_tokens: int = 32_768, source: str = "") -> ModelSpec:
    """What a checkpoint of that name can take, where nobody says more."""
    known = family(name)
    return ModelSpec(
        id=f"{provider}:{name}",
        name=name,
        label=_short(name),
        provider=provider,
        image=known.image,
        audio=known.audio,
        reasoning=known.reasoning_parser is not None,
        always_reasons=known.always_reasons,
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
    """The table, read: providers by id, models by id, and what a provider's models are where the table says no more."""

    providers: Mapping[str, ProviderSpec]
    models: Mapping[str, ModelSpec]
    assumed: Mapping[str, Mapping[str, Any]]

    def find(self, model: str, provider: str | None = None) -> ModelSpec:
        """The model called `provider:name`, or by a bare name of the table, or by any name of that `provider`.

        Case and white space around do not count. A dated snapshot (`gpt-4o-2024-11-20`) and a choice of the router's
        (`org/name:fastest`) are what the table says of the name without them, and are sent with them. Raises
        `UnknownModel` with what to write instead.
        """
        model = model.strip()
        check_name(model)
        prefix, colon, rest = model.partition(":")
        named = self.provider(prefix) if colon else None
        if provider is not None:
            found = self.provider(provider)
            if found is None:
                said = {"name": provider[:80], "known": self._ids()}
                text = "No provider named {name!r} is known; there are {known}.".format(**said)
                raise UnknownModel(text, sayings=[LocalizedText("unknown_provider", said)])
            return self._of(found, rest.strip() if named is found else model)
        if named is not None:
            return self._of(named, rest.strip())
        known, more = self._known(model, self.providers)
        # What follows a colon chooses among the router's servers, so the name alone does not say who is meant.
        if known is None or ":" in more:
            raise self._unknown(model)
        return self._of(self.providers[known.provider], known.name + more)

    def provider(self, name: str) -> ProviderSpec | None:
        """The provider of that id or alias, in capitals or not."""
        key = name.strip().casefold()
        return next((one for one in self.providers.values() if key in (one.id, *one.aliases)), None)

    def menu(self) -> tuple[ModelSpec, ...]:
        """The models offered without being asked for."""
        return tuple(spec for spec in self.models.values() if spec.menu)

    def _of(self, provider: ProviderSpec, name: str) -> ModelSpec:
        """The provider's model of that name: of the table, the same weights served by another, or assumed."""
        if not name:
            text = f"Which model of {provider.label}? Write its name, as in {provider.id}:name."
            raise UnknownModel(
                text, sayings=[LocalizedText("which_model", {"provider": provider.label, "id": provider.id})]
            )
        known, more = self._known(name, (provider.id,))
        # A server of one's own may have named it itself, in this very spelling.
        called = known.name + more if known is not None and provider.base_url else name
        if known is None and provider.open_weights:
            known, _ = self._known(name, [one.id for one in self.providers.values() if one.open_weights])
        if known is None:
            return self._assume(provider, name)
        if (known.provider, known.name) == (provider.id, called):
            return known
        ours = known
        if known.provider != provider.id:
            ours = replace(known, provider=provider.id, price=None, source=provider.label)
        return _carried(
            replace(ours, id=f"{provider.id}:{called}", name=called, label=_short(called), menu=False), provider
        )

    def _known(self, name: str, providers: Iterable[str]) -> tuple[ModelSpec | None, str]:
        """The first model of these providers with that name, or with it but for what names a variant, and that."""
        specs = [spec for id_ in providers for spec in self.models.values() if spec.provider == id_]
        base = _VARIANT.sub("", name)
        for wanted, more in ((name, ""), (base, name[len(base) :])):
            for spec in specs:
                if _key(wanted) in (_key(spec.name), _key(_short(spec.name))):
                    return spec, more
        return None, ""

    def _assume(self, provider: ProviderSpec, name: str) -> ModelSpec:
        facts = self.assumed[provider.id]
        if provider.open_weights:
            return _carried(replace(guess(name, provider.id, source=provider.label), **facts), provider)
        return _model(provider, name, facts, name)

    def _unknown(self, name: str) -> UnknownModel:
        name = " ".join(name.split())[:80]
        names = {_key(spec.name): spec.name for spec in self.models.values()}
        close = [names[key] for key in get_close_matches(_key(name), names)]
        perhaps = f"Perhaps it is {' or '.join(close)}. " if close else ""
        example = f"huggingface:{name}" if "/" in name else f"openai:{'gpt-6-luna' if ':' in name else name or 'name'}"
        sayings = [LocalizedText("unknown_model", {"name": name})]
        if close:
            sayings.append(LocalizedText("perhaps", {"names": " / ".join(close)}))
        return UnknownModel(
            f"No model named {name!r} is known here. {perhaps}"
            f"Say who serves it, as in {example}; providers are {self._ids()}.",
            sayings=[*sayings, LocalizedText("say_who_serves", {"example": example, "providers": self._ids()})],
        )

    def _ids(self) -> str:
        return ", ".join(self.providers)


_VARIANT = re.compile(r"(?::[\w.-]+|[-@]\d{8}|-\d{4}-\d\d-\d\d|-latest)$")


def _key(name: str) -> str:
    """What of a name counts. Google's own lists write `models/` before it."""
    return name.casefold().removeprefix("models/")


def _short(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1]


def _carried(spec: ModelSpec, provider: ProviderSpec) -> ModelSpec:
    """The model as far as this provider carries what it could take."""
    return replace(
        spec, image=spec.image and bool(provider.image_types), audio=spec.audio and bool(provider.audio_types)
    )


# --- reading the table ----------------------------------------------------------------------------------------------


@cache
def load_catalog(path: Path = TABLE) -> Catalog:
    """The table of this program, read once. Raises `ConfigError` naming the entry that is wrong."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path.name} cannot be read: {error}") from error
    found = _checked(_Table, table, path.name)
    providers: dict[str, ProviderSpec] = {}
    assumed: dict[str, Mapping[str, Any]] = {}
    for id_, given in found.providers.items():
        at = f"{path.name}, provider {id_!r}"
        assumed[id_] = _checked(dict[str, Any], given.pop("assumed", {}), f"{at}, assumed")
        providers[id_] = _checked(ProviderSpec, {**given, "id": id_}, at)
        _model(providers[id_], "any", assumed[id_], f"{at}, assumed")  # what is assumed must be a model
    models: dict[str, ModelSpec] = {}
    for given in found.models:
        at = f"{path.name}, models {given.get('names')}"
        names = _checked(tuple[str, ...], given.pop("names", None), f"{at}, names")
        provider = providers.get(given.pop("provider", ""))
        if provider is None:
            raise ConfigError(f"{at}: provider must be one of {', '.join(providers)}")
        for name in names:
            spec = _model(provider, name, {**assumed[provider.id], **given}, f"{path.name}, model {name!r}")
            if spec.id in models:
                raise ConfigError(f"{path.name}, model {name!r}: {provider.id} has two entries of this name")
            models[spec.id] = spec
    for spec in models.values():
        if spec.replaced_by and f"{spec.provider}:{spec.replaced_by}" not in models:
            raise ConfigError(
                f"{path.name}, model {spec.name!r}: replaced_by {spec.replaced_by!r} is no model of {spec.provider}"
            )
    return Catalog(providers, models, assumed)


@dataclass(frozen=True, slots=True)
class _Table:
    __pydantic_config__ = _NO_OTHERS

    providers: dict[str, dict[str, Any]]
    models: list[dict[str, Any]]


def _model(provider: ProviderSpec, name: str, facts: Mapping[str, Any], at: str) -> ModelSpec:
    own = {"label": _short(name), "source": provider.label, "dialect": provider.dialect}
    who = {"id": f"{provider.id}:{name}", "name": name, "provider": provider.id}
    spec = _checked(ModelSpec, {**own, **facts, **who}, at)
    if not 0 < spec.usual_output_tokens <= spec.max_output_tokens <= spec.context_tokens:
        raise ConfigError(f"{at}: usual_output_tokens <= max_output_tokens <= context_tokens does not hold")
    if spec.retired and spec.retired_on:
        raise ConfigError(f"{at}: retired is for those whose retired_on is not known")
    return spec


def _checked(kind: type[_T], given: object, at: str) -> _T:
    """The value as that type, nothing converted: as JSON, where lists are tuples too."""
    try:
        return _adapter(kind).validate_json(to_json(given), strict=True)
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_url=False)]
        raise ConfigError(f"{at}: {'; '.join(wrong)}") from error


@cache
def _adapter(kind: type[_T]) -> TypeAdapter[_T]:
    return TypeAdapter(kind)
