"""While one visitor attacks a public page, another one is served: the short form of `python -m bench.attack`."""

from collections.abc import Callable

import pytest

from bench.attack import documents, requests, texts
from bench.attack.__main__ import CONFIG, GROWTH_MB, MODEL
from bench.attack.attacks import ATTACKS, SHORT
from bench.attack.client import bystander, memory
from tests.conftest import App
from tests.support.gate_rows import gate_rows
from tests.support.scripted_server import Config, Running

SERVER = Config(models=(MODEL,), rate=200.0)
LONGEST_S = 5.0
"""The longest wait of the other visitor, on a machine that runs other tests. Each attack once took 6 to 41 s."""


@pytest.fixture(scope="module")
def public(start_app: Callable[..., App], server: Running) -> App:
    """Start a public page for this file."""
    return start_app(CONFIG, VLLM_BASE_URL=server.base_url)


ROWS = {name: name for name in (*SHORT, *documents.ATTACKS, *requests.MORE, *texts.MORE)}


@pytest.mark.parametrize("name", gate_rows(ROWS, SHORT))
def test_attack_makes_no_other_visitor_wait(public: App, name: str) -> None:
    with bystander(public.url, pause=0.2) as other, memory(public.process.pid) as held:
        ATTACKS[name](public.url)
    assert not other.failures
    assert other.looks
    assert other.slowest < LONGEST_S, other
    assert held.grown < GROWTH_MB, held
