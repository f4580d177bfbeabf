"""The models that a visitor can choose: local ones, and hosted ones with a key."""

import asyncio
import gc
import logging
import math
from collections.abc import Iterable
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Literal, Self
from urllib.parse import urlsplit

from agent.errors import AgentError, ConfigError, InputError, LocalModelError, ProviderError
from agent.i18n.text import _
from agent.i18n.translator import ENGLISH, Translator
from agent.models.catalog import Catalog, ModelSpec, ProviderSpec, load_catalog
from agent.models.families import check_name
from agent.providers.connection import (
    Connection,
    Endpoint,
    Models,
    ServedModel,
    connect,
    default_endpoint,
    preloaded,
    without_refused,
)
from agent.providers.discovery import look_up
from agent.settings import Settings

log = logging.getLogger(__name__)

MAX_KEY_LENGTH = 500
COLLECT_AFTER_SECONDS = 1.0
"""Seconds before a garbage collection, so that what is just ending is included."""
COLLECT_EVERY_SECONDS = 10.0
"""Seconds between two garbage collections, because each stops the server for a moment."""


@dataclass
class _OwnerKeys:
    keys: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    timer: asyncio.TimerHandle | None = None


class ApiKeys:
    """Keys by owner and provider. Forgets an owner's keys after `seconds` without a sign of life."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._by_owner: dict[str, _OwnerKeys] = {}
        self._collected_at = -math.inf
        self._collection: asyncio.TimerHandle | None = None

    def put(self, owner: str, provider: str, key: str) -> None:
        """Store a key. Raises `InputError` for text that cannot be a key; the message does not repeat it."""
        key = key.strip()
        if not key:
            raise InputError(_("Paste the key first."))
        if len(key) > MAX_KEY_LENGTH or not key.isascii() or not key.isprintable() or " " in key:
            raise InputError(_("That doesn't look like a key. Paste it without spaces."))
        self._by_owner.setdefault(owner, _OwnerKeys()).keys[provider] = key
        self.keep_alive(owner)

    def get(self, owner: str, provider: str) -> str | None:
        """Return the key that this owner typed for a provider."""
        found = self._by_owner.get(owner)
        return found.keys.get(provider) if found else None

    def has_any(self, owner: str) -> bool:
        """Return True if this owner has typed a key."""
        return owner in self._by_owner

    def keep_alive(self, owner: str) -> None:
        """Restart the time after which the owner's keys are forgotten."""
        found = self._by_owner.get(owner)
        if found is None:
            return
        if found.timer is not None:
            found.timer.cancel()
        # In an empty context: a cancelled timer stays in the event loop with its context, which has this request's key.
        loop = asyncio.get_running_loop()
        found.timer = loop.call_later(self._seconds, self.forget, owner, context=Context())

    def forget(self, owner: str) -> None:
        """Drop all keys of the owner."""
        found = self._by_owner.pop(owner, None)
        if found is None:
            return
        if found.timer is not None:
            found.timer.cancel()
        self.collect_soon()

    def collect_soon(self) -> None:
        """Free forgotten keys. A failed run is a reference cycle with its error, and holds its key until then."""
        if self._collection is None:
            loop = asyncio.get_running_loop()
            at = max(loop.time() + COLLECT_AFTER_SECONDS, self._collected_at + COLLECT_EVERY_SECONDS)
            self._collection = loop.call_at(at, self._collect)

    def _collect(self) -> None:
        self._collection, self._collected_at = None, asyncio.get_running_loop().time()
        gc.collect()
        log.debug("collected garbage after a key was forgotten")


HUB = "huggingface"
"""The provider that accepts a login as a key."""
HERE = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class MenuEntry:
    """A model as the menu shows it to a visitor.

    `missing` says what the visitor needs before the model can be used, or is "". `place` is where the model runs.
    """

    id: str
    label: str
    source: str
    missing: str
    place: Literal["local", "hosted"]
    image: bool = False
    audio: bool = False
    video: bool = False
    reasoning: bool = False
    tools: bool = False

    @property
    def full_label(self) -> str:
        """The name with what is missing."""
        return f"{self.label} · {self.missing}" if self.missing else self.label


class ModelMenu:
    """The local models, the catalog and the keys as one list. Owns the connections that many runs share.

    A `login` is the visitor's Hugging Face token. For models of that provider it is used after a key that the visitor
    typed and before the owner's key, and it is kept only during the call. With `may_log_in`, visitors can log in.
    `lent` names the hosted models that can use the owner's keys; None: all of them. Raises `ConfigError` for an unknown
    name.
    """

    def __init__(
        self,
        local: Models,
        catalog: Catalog,
        *,
        key_seconds: float,
        keys_taken: bool,
        may_log_in: bool = False,
        lent: Iterable[str] | None = None,
        hides_addresses: bool = False,
    ) -> None:
        self.local, self.catalog, self.accepts_keys, self._may_log_in = local, catalog, keys_taken, may_log_in
        self._hides_addresses = hides_addresses
        self._lent = None if lent is None else frozenset(_id(catalog, name) for name in lent)
        self.keys = ApiKeys(key_seconds)
        self._connections: dict[ServedModel, Connection] = {}

    @classmethod
    def of(cls, settings: Settings, local: Models) -> Self:
        """Return the menu for a page with these settings."""
        public = settings.public
        return cls(
            local,
            load_catalog(),
            key_seconds=settings.key_seconds,
            keys_taken=public is None or public.keys,
            may_log_in=settings.has_login,
            lent=public.models if public else None,
            hides_addresses=public is not None,
        )

    def listed(
        self, owner: str, chosen: ModelSpec | None, login: str | None = None, translator: Translator = ENGLISH
    ) -> list[MenuEntry]:
        """Return each model: local models, then hosted ones. Always contains the chosen model."""
        specs = self._usable(owner, login)
        if chosen is not None and chosen not in specs:
            specs.append(chosen)
        return [
            MenuEntry(
                id=spec.id,
                label=translator(shown_name(spec)),
                source=translator(spec.source),
                missing=translator(self.missing(owner, spec, login)),
                place="local" if self._is_local(spec) else "hosted",
                image=spec.image,
                audio=spec.audio,
                video=spec.video,
                reasoning=spec.reasoning,
                tools=spec.tools != "none",
            )
            for spec in specs
        ]

    def choosable(self, owner: str, login: str | None = None) -> list[ModelSpec]:
        """Return the models of the menu that can be used now, then those that lack a key."""
        return sorted(self._usable(owner, login), key=lambda spec: self.key_missing(owner, spec, login))

    def find(self, model: str) -> ModelSpec | None:
        """Return the model with this id or name. For "", return the first local model, or None if there is none yet.

        Raises `UnknownModel` with suggestions.
        """
        check_name(model)
        served = self._find_served(model)
        if served is not None or not model:
            return without_refused(served.spec, served.endpoint.base_url) if served else None
        return self._without_refused(self.catalog.find(model))

    def get(self, model: object) -> ModelSpec | None:
        """Return the model with this id or name, or None, also for a value of a page that is no text."""
        try:
            return self.find(model) if isinstance(model, str) and model else None
        except AgentError:
            return None

    def name_of(self, model: str) -> str:
        """Return the name of the model with this id, as the list of models shows it, or the id of an unknown one."""
        spec = self.get(model)
        return shown_name(spec) if spec else model

    def provider(self, spec: ModelSpec) -> ProviderSpec | None:
        """Return the hosted provider of a model, or None for a local model."""
        found = self.catalog.providers.get(spec.provider)
        return found if found is not None and found.base_url else None

    def may_log_in(self, spec: ModelSpec) -> bool:
        """Return True if a login can replace a key."""
        return self._may_log_in and spec.provider == HUB

    def has_typed_key(self, owner: str, spec: ModelSpec) -> bool:
        """Return True if the visitor has typed a key for the model's provider, which its answers use."""
        provider = self.provider(spec)
        return provider is not None and bool(self._visitors_key(owner, provider, None))

    def key_missing(self, owner: str, spec: ModelSpec, login: str | None = None) -> bool:
        """Return True if the model cannot be used because no key is available."""
        provider = self.provider(spec)
        if provider is None or not provider.key_names or self._visitors_key(owner, provider, login):
            return False
        return not self._is_lent(spec) or default_endpoint(provider).api_key is None

    def missing(self, owner: str, spec: ModelSpec, login: str | None = None) -> str:
        """Return what the visitor needs before the model can be used, or ""."""
        if not self.key_missing(owner, spec, login):
            return ""
        if self.may_log_in(spec):
            return _("needs a login")
        return _("needs a key") if self._lent is None else _("needs your own key")

    async def connect(self, owner: str, model: str, login: str | None = None) -> tuple[Connection, bool]:
        """Return the connection to a model, and True if the caller must close it.

        A connection with a visitor's key, or to a model that is not on the menu, serves one run. Waits for a local
        model that is still loading. Raises an `AgentError` with a message.
        """
        check_name(model)
        spec = self.find(model) if model and self._find_served(model) is None else None
        provider = self.provider(spec) if spec is not None else None
        if spec is None or provider is None:
            served = await self._wait_for_model(model)
            await preloaded(served.spec.dialect)
            return self._get_shared_connection(served), False
        await preloaded(spec.dialect)
        endpoint = default_endpoint(provider)
        if key := self._visitors_key(owner, provider, login):
            self.keys.keep_alive(owner)
            own = Endpoint(endpoint.base_url, key, is_own_key=key != login)
            return connect(await look_up(spec, own), own), True
        if provider.key_names and (not self._is_lent(spec) or endpoint.api_key is None):
            raise ProviderError(self._key_advice(spec, provider), kind="key")
        if spec.menu:
            return self._get_shared_connection(ServedModel(spec, endpoint)), False
        return connect(
            await look_up(spec, endpoint), endpoint
        ), True  # any name can be typed, so kept connections would pile up

    def _key_advice(self, spec: ModelSpec, provider: ProviderSpec) -> str:
        """Return what the visitor can do about a model that needs a key."""
        if not self.accepts_keys:
            return _(
                "This public page does not offer {model}, a model of {provider}. Choose another one.",
                model=spec.label,
                provider=provider.label,
            )
        if self.may_log_in(spec):
            return _(
                "{model} needs an API key from {provider}. Paste one for this session, or log in.",
                model=spec.label,
                provider=provider.label,
            )
        return _(
            "{model} needs an API key from {provider}. Paste one for this session.",
            model=spec.label,
            provider=provider.label,
        )

    async def close(self, connection: Connection, owner: str) -> None:
        """Close the connection of one run. Frees its key now if the key was forgotten meanwhile or never kept."""
        await connection.aclose()
        if not self.keys.has_any(owner):
            self.keys.collect_soon()

    @property
    def is_settled(self) -> bool:
        """True if a model is ready and none is still loading."""
        status = self.local.status
        return status.phase == "ready" and (status.done is None or status.done >= 1)

    async def aclose(self) -> None:
        """Close the shared connections."""
        for connection in self._connections.values():
            await connection.aclose()

    @property
    def shared_models(self) -> tuple[str, ...]:
        """The hosted models that strangers can use with the owner's keys, if these are limited."""
        return tuple(sorted(self._lent or ()))

    @property
    def own_keys_only(self) -> bool:
        """True if a hosted model that is not lent needs a visitor's own key, even if the owner has one."""
        return self._lent is not None

    def _is_lent(self, spec: ModelSpec) -> bool:
        return self._lent is None or spec.id in self._lent

    def _is_local(self, spec: ModelSpec) -> bool:
        """Return True if the model runs on this machine. A server elsewhere can be named as an endpoint, too."""
        served = next((one for one in self.local.served if one.spec.id == spec.id), None)
        return served is not None and urlsplit(served.endpoint.base_url).hostname in HERE

    def _usable(self, owner: str, login: str | None) -> list[ModelSpec]:
        """Return the models of the menu, without those that need a key if visitors cannot give one."""
        if self.accepts_keys:
            return self.specs()
        return [spec for spec in self.specs() if not self.key_missing(owner, spec, login) or self.may_log_in(spec)]

    def specs(self) -> list[ModelSpec]:
        """Return the local models, then the hosted models of the menu."""
        specs = [without_refused(one.spec, one.endpoint.base_url) for one in self.local.served]
        return specs + [self._without_refused(spec) for spec in self.catalog.menu() if spec not in specs]

    def _without_refused(self, spec: ModelSpec) -> ModelSpec:
        provider = self.provider(spec)
        return without_refused(spec, default_endpoint(provider).base_url) if provider else spec

    def specs_with(self, model: str) -> list[ModelSpec]:
        """Return the models of `specs`, and the model with this id or name, which may have been typed."""
        spec = self.get(model)
        return [*self.specs(), *([spec] if spec else [])]

    def _visitors_key(self, owner: str, provider: ProviderSpec, login: str | None) -> str | None:
        return self.keys.get(owner, provider.id) or (login if provider.id == HUB else None)

    def _find_served(self, model: str) -> ServedModel | None:
        served = self.local.served
        if not model:
            return served[0] if served else None
        return next((one for one in served if model in (one.spec.id, one.spec.name)), None)

    async def _wait_for_model(self, model: str) -> ServedModel:
        served = await self.local.ready()
        if found := self._find_served(model):
            return found
        known = ", ".join(one.spec.id for one in served)
        raise LocalModelError(_("No model named {name!r} answers. Those that do: {known}.", name=model, known=known))

    def _get_shared_connection(self, served: ServedModel) -> Connection:
        if served not in self._connections:
            endpoint = replace(served.endpoint, is_secret=self._hides_addresses)
            self._connections[served] = connect(served.spec, endpoint)
        return self._connections[served]


def _id(catalog: Catalog, name: str) -> str:
    try:
        return catalog.find(name).id
    except AgentError as error:
        raise ConfigError(f"public.models: {error}") from error


def shown_name(spec: ModelSpec) -> str:
    """Return the model's name, with a remark if it runs on this machine."""
    return _("{model} (on this CPU)", model=spec.label) if spec.id.startswith("local:") else spec.label
