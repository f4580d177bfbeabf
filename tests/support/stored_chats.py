"""Chats with a store for the tests of all five stores, and programs that open the same chat in another process."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent.settings import ROOT
from tests.support import postgres_server, redis_servers
from tests.support.history_stores import SERVERS
from tests.support.scripted_server import Running

ID = "customer-42"
URLS: dict[str, Callable[[Path], str]] = {
    "memory": lambda folder: f"memory:{folder.name}",
    "sqlite": lambda folder: f"sqlite:///{folder}/chats.db",
    "json": lambda folder: f"json:{folder}/chats",
    "postgres": postgres_server.url_of,
    "redis": redis_servers.shared_url,
}


def stores(*names: str, full: Sequence[str] = ()) -> Any:
    marks = {name: pytest.mark.full if name in full else pytest.mark.slow if name in SERVERS else () for name in names}
    return pytest.mark.parametrize("url", [pytest.param(name, marks=marks[name]) for name in names], indirect=True)


ALL, SHARED = stores(*URLS), stores("sqlite", "json", "postgres", "redis", full=("json", "redis"))
ONE = stores("sqlite", "json", "postgres", "redis", full=("json", "postgres", "redis"))
"""For long tests whose law other tests check on the other stores."""


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of the store of the test. A module takes the fixture by its name: `url = stored_chats.url`."""
    return URLS[getattr(request, "param", "sqlite")](tmp_path)


def start_program(
    server: Running, url: str, body: str, *, before: str = "", options: str = ""
) -> "subprocess.Popen[str]":
    """Start a program with `chat` as the chat of the test. `before` can define tools for the `options` of its agent."""
    script = f"""
from agent import Agent, Chat, Limits, tool
{before}
chat = Chat(Agent("Qwen/Qwen3-8B", provider="vllm", base_url={server.base_url!r}, {options}), store={url!r}, id={ID!r})
{body}
"""
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
