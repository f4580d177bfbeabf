"""Connects to a model by its name: at its provider, at a given address, or on a server that this machine starts."""

import os
from dataclasses import replace

from agent.errors import InputError, UnknownModel
from agent.models.catalog import AUTO, Capabilities, load_catalog, with_capabilities
from agent.providers.connection import (
    Connection,
    Endpoint,
    base_url_variable,
    check_base_url,
    connect,
    default_endpoint,
)
from agent.settings import load_settings

_OWN_SERVERS = ("vllm", "llama.cpp")
"""Providers with servers that this machine can start."""


def connect_by_name(
    model: str,
    provider: str | None,
    base_url: str | None,
    api_key: str | None = None,
    capabilities: Capabilities | None = None,
) -> Connection:
    """Return the connection to a model by its name, as `Catalog.find` reads it.

    `auto` is the model that the page would choose on this machine, or the first model at `base_url`. `capabilities`
    count more than what the catalogue says about the model.

    If the model has open weights and no server is named, this machine serves it from its first request on. Raises
    `UnknownModel` if no server for it is known, or if this machine cannot serve it.
    """
    is_auto = model.strip() == AUTO and provider is None
    if capabilities and is_auto:
        raise InputError("capabilities belong to a model with a name of its own")
    if is_auto:
        return _connect_later(base_url, api_key)
    try:
        spec = load_catalog().find(model, provider)
    except UnknownModel as error:
        if not base_url or provider is not None:
            raise
        raise UnknownModel(
            f'a model at an address of your own needs the kind of its server: Agent({model!r}, provider="vllm", '
            f"base_url=...). {error}"
        ) from None
    spec = with_capabilities(spec, capabilities or {})
    if base_url:
        return connect(spec, Endpoint(base_url, api_key, is_own_key=bool(api_key)))
    if spec.provider in _OWN_SERVERS and not os.environ.get(base_url_variable(spec.provider)):
        from agent.local.connection import LocalConnection  # late, because few programs start a server

        return LocalConnection(spec, load_settings().local)
    usual = default_endpoint(load_catalog().providers[spec.provider])
    return connect(spec, replace(usual, api_key=api_key or usual.api_key, is_own_key=bool(api_key)))


def _connect_later(base_url: str | None, api_key: str | None) -> Connection:
    settings = load_settings().local
    if base_url:
        check_base_url(base_url)
        settings = replace(settings, vllm_base_url=base_url.rstrip("/"), vllm_api_key=api_key)
    from agent.local.connection import AutoConnection  # late, because few programs start a server

    return AutoConnection(settings)
