"""The catalogue of models, `configs/models.toml`: each one's provider, capabilities, limits, price and retirement.

A model is found by `provider:name`, by a bare name in the table, or by any name together with its provider.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from agent.errors import InputError, UnknownModel
from agent.i18n.text import _, alternatives, joined
from agent.keyword_arguments import explains_fields
from agent.models.families import VARIANT, check_name, draws, family, key_of, short_name
from agent.system.project import FILES
from agent.system.toml_file import CLOSED, TomlFile

TABLE = FILES / "configs" / "models.toml"
LONGEST_ANSWER = 8192
AUTO = "auto"
"""The name of the model that is chosen when the first run begins, and its id before that."""
Dialect = Literal["chat", "responses", "messages", "generate"]
ToolSupport = Literal["native", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSpec:
    """A provider of models, and how to call it.

    `key_names` are the environment variables that can hold the key, and `keys_at` is where people get one; both are
    empty if no key is needed. `base_url` is "" if each user has their own server, which listens at `port` of this
    machine unless told otherwise (0: no usual port). `open_weights`: the name of the
    checkpoint tells the capabilities (see `agent.models.families`).

    `image_types`, `audio_types` and `video_types` are the media types that the provider accepts. If one is empty, no
    model gets such media. Limits are per request, in bytes before base64. `max_image_bytes`, `max_image_side` (pixels),
    `max_audio_bytes`, `max_video_bytes` and `max_video_seconds` apply to one item, `max_audio_seconds` and
    `max_media_bytes` to all items. 0: no known limit.
    `image_side` is the longest side that the models use: a larger picture costs more and shows them no more.
    """

    __pydantic_config__ = CLOSED

    id: str
    label: str
    dialect: Dialect
    base_url: str = ""
    port: int = 0
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
    video_types: tuple[str, ...] = ()
    max_videos: int = 0
    max_video_bytes: int = 0
    max_video_seconds: int = 0
    max_media_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """US dollars per million tokens.

    `cached` is for prompt tokens in the provider's cache and `audio` for audio tokens in the prompt; None: the same as
    `input`. `up_to`: requests with more prompt tokens cost more than these prices; 0: the prices always hold.
    """

    __pydantic_config__ = CLOSED

    input: float
    output: float
    cached: float | None = None
    audio: float | None = None
    up_to: int = 0


@explains_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One model that can be chosen.

    `id` is unique in the menu (`vllm:Qwen/Qwen3-8B`); `name` is the server's name for it. `context_tokens` is for
    prompt and answer together, `usual_output_tokens` the default limit of an answer. `schemas`: its server
    binds an answer to a JSON schema. `always_reasons`: reasoning cannot be turned off.
    `prefill`: its server lets a model go on with an answer that a request ends with.
    `speaks`: its server may send sound with the text. `needs_audio`: a request without sound is refused.
    `temperature`: it can be set. `retired_on` can be in the future;
    `retired`: retired on an unknown day. `replaced_by` is a model name of the same provider. `source` and `licence` are
    shown. `defaults` are required sampling settings, `examples` exchanges before each request. `menu`: it is listed.
    `assumed`: nobody has told these facts for this model of this provider, so its server is asked.
    """

    __pydantic_config__ = CLOSED

    id: str
    name: str
    label: str
    provider: str
    dialect: Dialect = "chat"
    image: bool = False
    audio: bool = False
    video: bool = False
    speaks: bool = False
    reasoning: bool = False
    always_reasons: bool = False
    prefill: bool = False
    needs_audio: bool = False
    temperature: bool = True
    tools: ToolSupport = "native"
    schemas: bool = True
    context_tokens: int = 32_768
    max_output_tokens: int = 4_096
    usual_output_tokens: int = 1_024
    price: Price | None = None
    retired: bool = False
    retired_on: date | None = None
    replaced_by: str = ""
    menu: bool = False
    assumed: bool = False
    source: str = ""
    licence: str = ""
    defaults: tuple[tuple[str, float], ...] = ()
    examples: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        check_name(self.name)

    @property
    def continues(self) -> bool:
        """True if the model can continue its own text. One that always reasons would begin with reasoning."""
        return self.prefill and not self.always_reasons

    @property
    def draws(self) -> bool:
        """True if the name says that the model answers with pictures, for which nothing comes for many seconds."""
        return draws(self.name)

    def advice(self, today: date) -> str:
        """Return the warning about a model that is retired or will be; "" if no retirement is known."""
        day = str(self.retired_on)
        if not self.retired and self.retired_on is None:
            return ""
        if self.retired_on is None:
            said: list[str] = [_("{model} was shut down.", model=self.label)]
        elif self.retired_on > today:
            said = [_("{model} will be shut down on {day}.", model=self.label, day=day)]
        else:
            said = [_("{model} was shut down on {day}.", model=self.label, day=day)]
        if self.replaced_by:
            said.append(_("{model} replaces it.", model=self.replaced_by))
        return joined([*said, _("It can still be tried.")])


def guess(name: str, provider: str, *, context_tokens: int = 32_768, source: str = "") -> ModelSpec:
    """Guess the capabilities of a checkpoint from its name alone.

    A name that implies nothing gets native tools and images: the server's first refusal corrects that.
    """
    known = family(name)
    return ModelSpec(
        id=f"{provider}:{name}",
        name=name,
        label=short_name(name),
        provider=provider,
        image=known.image or not known.is_known,
        audio=known.audio,
        video=known.video,
        speaks=known.speaks,
        reasoning=known.reasoning_parser is not None,
        always_reasons=known.always_reasons,
        tools="native" if known.tools else "none",
        context_tokens=context_tokens,
        max_output_tokens=longest_answer(context_tokens),
        source=source,
    )


class Capabilities(TypedDict, total=False):
    """The abilities of a model as the caller knows them, before the catalogue and its name; see `ModelSpec`."""

    image: bool
    audio: bool
    video: bool
    reasoning: bool
    always_reasons: bool
    prefill: bool
    temperature: bool
    tools: ToolSupport
    schemas: bool
    context_tokens: int
    max_output_tokens: int
    usual_output_tokens: int


def with_capabilities(spec: ModelSpec, given: Capabilities) -> ModelSpec:
    """Return the model with these facts. Raises `InputError` for an unknown fact or a value of the wrong type."""
    facts: dict[str, Any] = {**given}
    for name, value in facts.items():
        if name not in Capabilities.__annotations__:
            known = ", ".join(Capabilities.__annotations__)
            raise InputError(f"a model has no capability {name!r}; there are {known}")
        if type(value) is not type(getattr(spec, name)):
            raise InputError(f"the capability {name} must be a {type(getattr(spec, name)).__name__}, not {value!r}")
    if facts.get("tools", "none") not in get_args(ToolSupport):
        raise InputError(f"the capability tools is one of {', '.join(get_args(ToolSupport))}, not {facts['tools']!r}")
    if any(value < 1 for value in facts.values() if type(value) is int):
        raise InputError("a number of tokens must be 1 or more")
    context = facts.get("context_tokens", spec.context_tokens)
    most = facts.setdefault("max_output_tokens", min(spec.max_output_tokens, context))
    facts.setdefault("usual_output_tokens", min(spec.usual_output_tokens, most))
    if not facts["usual_output_tokens"] <= most <= context:
        raise InputError("usual_output_tokens <= max_output_tokens <= context_tokens does not hold")
    return replace(spec, **facts, assumed=spec.assumed and not given)


def longest_answer(context: int) -> int:
    """Return the most tokens to request for an answer, so that most of the context is left for the conversation."""
    return max(16, min(LONGEST_ANSWER, context // 4))


@dataclass(frozen=True, slots=True)
class Catalog:
    """The parsed table: providers by id, models by id, and assumed facts about a provider's other models.

    `unlisted` are the providers of the owner's own table whose models it does not name: their servers are asked.
    """

    providers: Mapping[str, ProviderSpec]
    models: Mapping[str, ModelSpec]
    assumed: Mapping[str, Mapping[str, Any]]
    unlisted: tuple[str, ...] = ()

    def find(self, model: str, provider: str | None = None) -> ModelSpec:
        """Find a model by `provider:name`, by a bare name in the table, or by any name together with `provider`.

        `provider/name` is the same as `provider:name` for a model of a hosted provider in the table. Case and
        surrounding white space do not matter. A dated snapshot (`gpt-4o-2024-11-20`) or a variant of the Hugging Face
        router (`org/name:fastest`) has the facts of the name without the suffix, and is sent with it. Raises
        `UnknownModel` with a hint.
        """
        model = model.strip()
        check_name(model)
        prefix, colon, rest = model.partition(":")
        named = self.provider(prefix) if colon else None
        if provider is not None:
            found = self.provider(provider)
            if found is None:
                name, ids = provider[:80], self._ids()
                raise UnknownModel(_("No provider named {name!r} is known; there are {known}.", name=name, known=ids))
            slashed = self._with_slash(model)
            if slashed is not None and slashed[0] is found:
                return self._of(*slashed)
            return self._of(found, rest.strip() if named is found else model)
        if named is not None:
            return self._of(named, rest.strip())
        known, more = self._known(model, self.providers)
        if known is None and (slashed := self._with_slash(model)) is not None:
            return self._of(*slashed)
        # A suffix after a colon chooses one of the router's servers, so the bare name does not tell the provider.
        if known is None or ":" in more:
            raise self._unknown(model)
        return self._of(self.providers[known.provider], known.name + more)

    def provider(self, name: str) -> ProviderSpec | None:
        """Return the provider with this id or alias, ignoring case, or None."""
        key = name.strip().casefold()
        return next((one for one in self.providers.values() if key in (one.id, *one.aliases)), None)

    def menu(self) -> tuple[ModelSpec, ...]:
        """Return the models that are listed in the menu."""
        return tuple(spec for spec in self.models.values() if spec.menu)

    def _with_slash(self, model: str) -> tuple[ProviderSpec, str] | None:
        """Return the provider and the name that `provider/name` means, as other packages write it.

        Names of checkpoints look the same: `google/gemma-3-27b-it`. So it means that only if the table has such a model
        of this provider.
        """
        prefix, _slash, name = model.partition("/")
        provider = self.provider(prefix)
        if provider is None or provider.open_weights or self._known(name.strip(), (provider.id,))[0] is None:
            return None
        return provider, name.strip()

    def _of(self, provider: ProviderSpec, name: str) -> ModelSpec:
        """Return the provider's model: from the table, from another provider with the same weights, or assumed."""
        if not name:
            label, id_ = provider.label, provider.id
            raise UnknownModel(_("Which model of {provider}? Write its name, as in {id}:name.", provider=label, id=id_))
        known, more = self._known(name, (provider.id,))
        # A user's own server can use exactly this spelling, so keep it.
        called = known.name + more if known is not None and provider.base_url else name
        if known is None and provider.open_weights:
            known = self._known(name, [one.id for one in self.providers.values() if one.open_weights])[0]
        if known is None:
            return self._assume(provider, name)
        if (known.provider, known.name) == (provider.id, called):
            return known
        ours = known
        if known.provider != provider.id:
            prefill = bool(self.assumed[provider.id].get("prefill"))
            ours = replace(
                known, provider=provider.id, price=None, source=provider.label, prefill=prefill, assumed=True
            )
        return carried(
            replace(ours, id=f"{provider.id}:{called}", name=called, label=short_name(called), menu=False), provider
        )

    def _known(self, name: str, providers: Iterable[str]) -> tuple[ModelSpec | None, str]:
        """Return the first model with this name and "", or with this name less a variant suffix and that suffix."""
        specs = [spec for id_ in providers for spec in self.models.values() if spec.provider == id_]
        base = VARIANT.sub("", name)
        for wanted, more in ((name, ""), (base, name[len(base) :])):
            for spec in specs:
                if key_of(wanted) in (key_of(spec.name), key_of(short_name(spec.name))):
                    return spec, more
        return None, ""

    def _assume(self, provider: ProviderSpec, name: str) -> ModelSpec:
        facts = self.assumed[provider.id]
        if provider.open_weights:
            guessed = guess(name, provider.id, source=provider.label)
            return carried(replace(guessed, **facts, assumed=True), provider)
        return ModelSpec(**_facts(provider, name, facts), assumed=True)

    def _unknown(self, name: str) -> UnknownModel:
        name = " ".join(name.split())[:80]
        names = {key_of(spec.name): spec.name for spec in self.models.values()}
        close = [names[key] for key in get_close_matches(key_of(name), names)]
        example = self._example(name)
        said = [_("No model named {name!r} is known here.", name=name)]
        if close:
            said.append(_("Perhaps it is {names}.", names=alternatives(close)))
        ids = self._ids()
        said.append(
            _("Add the provider, for example {example}. Providers: {providers}.", example=example, providers=ids)
        )
        return UnknownModel(joined(said))

    def _example(self, name: str) -> str:
        """Return how a model whose provider is not known could be written."""
        provider, slash, rest = name.partition("/")
        if name.startswith(("http://", "https://")):
            return f'Agent("vllm:name", base_url="{name}")'
        if name.endswith(".gguf"):
            return f"llama.cpp:{name.rpartition('/')[2]}"
        if slash:
            is_host = provider in self.providers and provider not in ("openai", "google")  # these publish weights, too
            return f"{provider}:{rest}" if is_host else f"huggingface:{name}"
        family, colon, size = name.partition(":")  # a tag of Ollama, such as "llama3:8b"
        if colon and family and (size[:1].isdecimal() or size == "latest"):
            return f"ollama:{name}"
        return f"openai:{'gpt-6-luna' if colon else name or 'name'}"

    def _ids(self) -> str:
        return ", ".join(self.providers)


def carried(spec: ModelSpec, provider: ProviderSpec) -> ModelSpec:
    """Return the model without the media that this provider does not accept."""
    return replace(
        spec,
        image=spec.image and bool(provider.image_types),
        audio=spec.audio and bool(provider.audio_types),
        video=spec.video and bool(provider.video_types),
    )


# --- reading the table ----------------------------------------------------------------------------------------------


_own_table: Path | None = None
"""The table in the data folder, see `use_table_in`."""


@cache
def load_catalog(path: Path = TABLE) -> Catalog:
    """Load the table once, and the owner's own one in SWITCHBOARD_MODELS, which adds providers and models.

    Raises `ConfigError` with the line and the name of the wrong entry.
    """
    catalog = _read(TomlFile(path, strict=True), Catalog({}, {}, {}))
    more = os.environ.get("SWITCHBOARD_MODELS") or _own_table if path == TABLE else None
    if not more:
        return catalog
    own = Path(more).expanduser()  # with its folder, because it can have the name of the shipped one
    return _read(TomlFile(own, strict=True, name=f"{own.parent.name}/{own.name}".lstrip("/")), catalog)


def use_table_in(folder: Path) -> None:
    """Let `models.toml` in this folder be the owner's own table, unless SWITCHBOARD_MODELS names another file."""
    global _own_table
    own = folder / "models.toml"
    own = own if own.is_file() else None
    if own != _own_table:
        _own_table = own
        load_catalog.cache_clear()


def _read(file: TomlFile, shipped: Catalog) -> Catalog:
    """Return the catalogue with what a file adds to it."""
    table = file.check(_AddedTable if shipped.providers else _CatalogTable, file.table)
    providers, assumed = dict(shipped.providers), dict(shipped.assumed)
    for id_, given in table.providers.items():
        way = ("providers", id_)
        if shipped.provider(id_) is not None:
            raise file.error(f"there is a provider {id_!r} already; give this one another name", *way)
        facts = file.check(dict[str, Any], given.pop("assumed", {}), *way, "assumed")
        providers[id_] = file.check(ProviderSpec, {**given, "id": id_}, *way)
        checked = _model(file, providers[id_], "any", facts, *way, "assumed")
        assumed[id_] = {key: getattr(checked, key) for key in facts}
    models: dict[str, ModelSpec] = dict(shipped.models)
    entries: dict[str, int] = {}
    for index, given in enumerate(table.models):
        names = file.check(list[str], given.pop("names", None), "models", index, "names")
        provider = providers.get(given.pop("provider", ""))
        if provider is None:
            what = f"models {names}: provider must be one of {', '.join(providers)}"
            raise file.error(what, "models", index, "provider")
        for name in names:
            spec = _model(file, provider, name, {**assumed[provider.id], **given}, "models", index)
            if spec.id in models:
                raise file.error(f"model {name!r}: {provider.id} has two entries of this name", "models", index)
            models[spec.id], entries[spec.id] = spec, index
    for id_, index in entries.items():
        spec = models[id_]
        if spec.replaced_by and f"{spec.provider}:{spec.replaced_by}" not in models:
            what = f"model {spec.name!r}: replaced_by {spec.replaced_by!r} is no model of {spec.provider}"
            raise file.error(what, "models", index, "replaced_by")
    named = {models[id_].provider for id_ in entries}
    added = [providers[id_] for id_ in table.providers if shipped.providers and id_ not in named]
    unlisted = tuple(one.id for one in added if one.dialect == "chat" and (one.base_url or one.port))
    return Catalog(providers, models, assumed, unlisted)


@dataclass(frozen=True, slots=True)
class _CatalogTable:
    __pydantic_config__ = CLOSED

    providers: dict[str, dict[str, Any]]
    models: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _AddedTable(_CatalogTable):
    __pydantic_config__ = CLOSED

    providers: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    models: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


def _facts(provider: ProviderSpec, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    own = {"label": short_name(name), "source": provider.label, "dialect": provider.dialect}
    return {**own, **given, "id": f"{provider.id}:{name}", "name": name, "provider": provider.id}


def _model(file: TomlFile, provider: ProviderSpec, name: str, facts: Mapping[str, Any], *way: str | int) -> ModelSpec:
    at = f"model {name!r}" if way[0] == "models" else ".".join(map(str, way))
    spec = file.check(ModelSpec, _facts(provider, name, facts), *way, at=at)
    if not 0 < spec.usual_output_tokens <= spec.max_output_tokens <= spec.context_tokens:
        raise file.error(f"{at}: usual_output_tokens <= max_output_tokens <= context_tokens does not hold", *way)
    if spec.retired and spec.retired_on:
        raise file.error(f"{at}: retired is for those whose retired_on is not known", *way, "retired")
    return spec
