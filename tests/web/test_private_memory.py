"""Other processes cannot read keys in the page's memory or environment."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.conftest import CONFIG, App
from tests.support.http_client import HttpVisitor

READING = """
import ctypes, os
from agent.web.privacy import make_memory_private

def is_readable():
    reader = os.fork()
    if not reader:
        try:
            open(f"/proc/{os.getppid()}/environ", "rb").read()
            os._exit(1)
        except PermissionError:
            os._exit(0)
    return bool(os.waitpid(reader, 0)[1])

if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # the change of the user has set it to 0
before = is_readable()
make_memory_private()
print(before, is_readable())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system about another process")
@pytest.mark.slow
def test_other_process_of_user_reads_no_environment() -> None:
    assert subprocess.check_output([sys.executable, "-c", READING], text=True).split() == ["True", "False"]


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system about its own process")
def test_memory_of_page_is_private(start_app: Callable[..., App]) -> None:
    app = start_app(CONFIG.replace("tools = [", 'tools = ["tests.support.heap_tools:is_dumpable", '))
    said = HttpVisitor(app.url).say("!tool is_dumpable {} !text Looked.", tools=True)
    assert "private" in said
    assert "readable" not in said
