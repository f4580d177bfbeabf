"""The app on a system without Unix locks and limits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.settings import ROOT
from tests.support.hub_server import serving

pytestmark = pytest.mark.slow

WITHOUT_UNIX = """
import asyncio, subprocess, sys  # Python's own modules for this system need what is missing from here on
for name in ("fcntl", "resource"):
    sys.modules[name] = None
from pathlib import Path
import agent.web.app, agent.web.server
from agent.settings import UploadSettings
from agent.web.connections import MAX_CONNECTIONS, raise_file_limit
from agent.web.unsent_files import UnsentFiles
assert raise_file_limit() > MAX_CONNECTIONS / 2
first, second = (UnsentFiles(Path(sys.argv[1]), UploadSettings()) for _ in range(2))
assert first.folder.is_dir() and second.folder.is_dir(), "nobody knows whether the first one is in use"
for files in (first, second):
    files.close()
    assert not files.folder.exists()
"""


@pytest.mark.full
def test_page_starts_without_unix_modules(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_UNIX, str(tmp_path)], cwd=ROOT, timeout=120, check=True)


def test_sandboxed_process_starts_without_limits() -> None:
    code = (
        "import sys; sys.modules['resource'] = None; from agent.system.rlimits import limit_worker; limit_worker(1, 1)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=True)


WITHOUT_LOCKS = """
import asyncio, sys
sys.modules["fcntl"] = None
from pathlib import Path
from agent.local.weights import fetch
from tests.support.toy_weights import from_hub
asyncio.run(fetch(from_hub(b"x" * 1000), Path(sys.argv[1]), report=lambda have, total: None))
"""


def test_weights_arrive_without_locks(tmp_path: Path) -> None:
    with serving(files={"/org/toy/resolve/rev/toy.gguf": b"x" * 1000}) as hub:
        command = [sys.executable, "-c", WITHOUT_LOCKS, str(tmp_path)]
        env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "hub-cache")}
        subprocess.run(command, cwd=ROOT, env=env, timeout=60, check=True)
    assert (tmp_path / "weights" / "toy.gguf").read_bytes() == b"x" * 1000
