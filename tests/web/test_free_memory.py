"""The page returns the memory of a peak to the system."""

import platform
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.conftest import CONFIG, App
from tests.support.http_client import HttpVisitor

PEAK_MB = 80
KEPT_MB = 10
pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these limits")


def kept(before: str = "") -> int:
    """Return the megabytes that a process keeps of a peak, after this code has run in it."""
    code = f"from tests.support.heap_tools import megabytes_kept\n{before}\nprint(megabytes_kept())"
    return int(subprocess.check_output([sys.executable, "-c", code], text=True))


@pytest.mark.slow
def test_fixed_limits_return_memory_of_all_threads() -> None:
    fixed = kept("from agent.system.resources import return_free_memory\nassert return_free_memory()")
    assert fixed < KEPT_MB < PEAK_MB // 2 < kept()


def test_page_returns_memory_of_all_threads(start_app: Callable[..., App]) -> None:
    app = start_app(CONFIG.replace("tools = [", 'tools = ["tests.support.heap_tools:megabytes_kept", '))
    said = HttpVisitor(app.url).say("!tool megabytes_kept {} !text Looked.", tools=True)
    found = re.search(r'"content":"(-?\d+)"', said)
    assert found is not None
    assert int(found[1]) < KEPT_MB
