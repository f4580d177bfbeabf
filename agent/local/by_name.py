"""The connection to a model that is named: at its provider, at a given address, or served by this machine."""

import os
from dataclasses import replace
from importlib import import_module
from typing import Any, cast

from agent.models.catalog import load_catalog
from agent.providers import Connection, Endpoint, base_url_variable, connect, default_endpoint
from agent.settings import load_settings

_OWN_SERVERS = ("vllm", "llama.cpp")
"""Providers whose servers this machine can start."""


def connect_by_name(model: str, provider: str | None, base_url: str | None, api_key: str | None = None) -> Connection:
    """The connection to a model by its name, as `Catalog.find` reads it.

    One of open weights whose server nobody names is served by this machine, from its first request on. Raises
    `UnknownModel` where nobody is known to serve it, or this machine cannot.
    """
    spec = load_catalog().find(model, provider)
    if base_url:
        return connect(spec, Endpoint(base_url, api_key))
    if spec.provider in _OWN_SERVERS and not os.environ.get(base_url_variable(spec.provider)):
        own: Any = import_module("agent.local.connection")
        return cast(Connection, own.LocalConnection(spec, load_settings().local))
    usual = default_endpoint(load_catalog().providers[spec.provider])
    return connect(spec, replace(usual, api_key=api_key or usual.api_key))
