"""The app on a system without Unix locks and limits, and the behaviour of locks on systems that have them."""

import subprocess
import sys
from pathlib import Path

import pytest

from agent.settings import ROOT
from agent.system.file_lock import try_lock

pytestmark = pytest.mark.slow

WITHOUT_UNIX = """
import asyncio, subprocess, sys  # Python's own modules for this system need what is missing from here on
for name in ("fcntl", "resource"):
    sys.modules[name] = None
from pathlib import Path
import agent.web.app, agent.web.server
from agent.settings import UploadSettings
from agent.web.connections import MOST_CONNECTIONS, raise_file_limit
from agent.web.unsent_files import UnsentFiles
assert raise_file_limit() > MOST_CONNECTIONS / 2
first, second = (UnsentFiles(Path(sys.argv[1]), UploadSettings()) for _ in range(2))
assert first.folder.is_dir() and second.folder.is_dir(), "nobody knows whether the first one is in use"
for files in (first, second):
    files.close()
    assert not files.folder.exists()
"""


def test_page_starts_without_unix_modules(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_UNIX, str(tmp_path)], cwd=ROOT, timeout=120, check=True)


def test_sandboxed_process_starts_without_limits() -> None:
    code = (
        "import sys; sys.modules['resource'] = None; from agent.system.rlimits import limit_worker; limit_worker(1, 1)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=True)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows opens no locked file for the second time")
def test_lock_has_one_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("wb") as first, path.open("r+b") as second:
        assert try_lock(first)
        assert not try_lock(second)
        first.close()
        assert try_lock(second)
