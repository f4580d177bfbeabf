"""The modules and clients that a first request needs are loaded before it."""

import subprocess
import sys

import pytest

OPENING = """
import asyncio, sys
from agent.fetch import tls_context
from agent.models.catalog import load_catalog
from agent.providers.connection import Endpoint, connect, preload

async def open_model(name):
    connection = connect(load_catalog().find(name), Endpoint("https://127.0.0.1:9/v1", "key"))
    connection.model()
    await connection.aclose()

for name in sys.argv[1:]:
    preload(load_catalog().find(name).dialect)
    loaded, read = set(sys.modules), tls_context.cache_info().misses
    asyncio.run(open_model(name))
    print(name, len(set(sys.modules) - loaded), tls_context.cache_info().misses - read)
"""
MODELS = (
    "huggingface:Qwen/Qwen3-VL-8B-Instruct",
    "openai:gpt-6-luna",
    "anthropic:claude-sonnet-5-5",
    "google:gemini-3.8-flash",
)
"""One for each dialect."""


IDLE = """
import asyncio, sys
from types import SimpleNamespace
from agent.models.catalog import load_catalog
from agent.web.app import preload_models

looks = []

def is_busy():
    looks.append("anthropic" in sys.modules)
    return len(looks) < 5

async def no_wait(_):
    await asyncio.sleep(0)

chosen = [load_catalog().find(name) for name in sys.argv[1:]]
asyncio.run(preload_models(SimpleNamespace(choosable=lambda owner: chosen), is_busy, no_wait))
print(any(looks[:5]), *(name in sys.modules for name in ("openai", "anthropic", "google.genai")))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("models", "loaded"),
    [(MODELS, "True True True"), pytest.param((), "True False False", marks=pytest.mark.full)],
    ids=["all", "none"],
)
def test_idle_server_loads_what_can_be_chosen(models: tuple[str, ...], loaded: str) -> None:
    said = subprocess.run(
        [sys.executable, "-c", IDLE, *models], capture_output=True, text=True, timeout=100, check=True
    )
    assert said.stdout.strip() == f"False {loaded}"


@pytest.mark.slow
def test_first_request_loads_nothing() -> None:
    said = subprocess.run(
        [sys.executable, "-c", OPENING, *MODELS], capture_output=True, text=True, timeout=100, check=True
    )
    assert [line.split()[1:] for line in said.stdout.splitlines()] == [["0", "0"]] * len(MODELS), said.stdout
