"""Connects to a model by its name.

The model answers at its provider, at a given address, on a server that this machine starts, or from a run record.
"""

import os
from dataclasses import replace

from agent.models.catalog import load_catalog
from agent.providers import Connection, Endpoint, base_url_variable, connect, default_endpoint
from agent.settings import load_settings
from agent.tracing.replay import PREFIX, Replay

_OWN_SERVERS = ("vllm", "llama.cpp")
"""Providers with servers that this machine can start."""


def connect_by_name(model: str, provider: str | None, base_url: str | None, api_key: str | None = None) -> Connection:
    """Return the connection to a model by its name, as `Catalog.find` reads it. `replay:path` plays a run record.

    If the model has open weights and no server is named, this machine serves it from its first request on. Raises
    `UnknownModel` if no server for it is known, or if this machine cannot serve it. Raises `InputError` if a record
    cannot be read.
    """
    if model.startswith(PREFIX):
        return Replay.from_name(model)
    spec = load_catalog().find(model, provider)
    if base_url:
        return connect(spec, Endpoint(base_url, api_key))
    if spec.provider in _OWN_SERVERS and not os.environ.get(base_url_variable(spec.provider)):
        from agent.local.connection import LocalConnection  # late, because few programs start a server

        return LocalConnection(spec, load_settings().local)
    usual = default_endpoint(load_catalog().providers[spec.provider])
    return connect(spec, replace(usual, api_key=api_key or usual.api_key))
