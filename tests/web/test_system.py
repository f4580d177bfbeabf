"""The app on a system without Unix locks and limits."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from agent.settings import ROOT
from tests.conftest import becomes
from tests.support.hub_server import serving
from tests.support.scripted_server import Running

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
    limit = "from agent.system.resources import limit_worker; limit_worker(1, 1)"
    code = f"import sys; sys.modules['resource'] = None; {limit}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=True)


WITHOUT_LOCKS = """
import asyncio, sys
sys.modules["fcntl"] = None
from pathlib import Path
from agent.models.weights import fetch
from tests.support.toy_weights import from_hub
asyncio.run(fetch(from_hub(b"x" * 1000), Path(sys.argv[1]), report=lambda have, total: None))
"""


def test_weights_arrive_without_locks(tmp_path: Path) -> None:
    with serving(files={"/org/toy/resolve/rev/toy.gguf": b"x" * 1000}) as hub:
        command = [sys.executable, "-c", WITHOUT_LOCKS, str(tmp_path)]
        env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "hub-cache")}
        subprocess.run(command, cwd=ROOT, env=env, timeout=60, check=True)
    assert (tmp_path / "weights" / "toy.gguf").read_bytes() == b"x" * 1000


def test_program_starts_again_when_its_code_changes(tmp_path: Path, model_server: Running) -> None:
    for name in ("agent", "configs", "app.py"):
        found = ROOT / name
        (shutil.copytree if found.is_dir() else shutil.copy2)(found, tmp_path / name)
    env = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        **{"GRADIO_SERVER_PORT": "0", "SWITCHBOARD_DATA": str(tmp_path / "data")},
        **{"VLLM_BASE_URL": model_server.base_url, "PYTHONUNBUFFERED": "1"},
    }
    log, command = tmp_path / "log", [sys.executable, "-c", "from gradio.cli import cli; cli()", "app.py"]
    with log.open("wb") as out:
        program = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=out, stderr=out, start_new_session=True)

    def addresses() -> list[str]:
        return re.findall("The page is at (.*)", log.read_text())

    try:
        becomes(1, lambda: len(addresses()), 60)
        config = tmp_path / "configs" / "app.toml"
        broken = tmp_path / "agent" / "chat.py"
        whole = broken.read_text()
        broken.write_text("def")
        becomes(True, lambda: "chat.py has changed and cannot be used" in log.read_text())
        broken.write_text(whole)
        becomes(2, lambda: len(addresses()), 60)
        assert len(set(addresses())) == 1  # open pages find it again
        config.write_text(config.read_text().replace('title = "Switchboard"', 'title = "Changed"'))
        becomes(3, lambda: len(addresses()), 60)
        assert "<title>Changed</title>" in httpx.get(addresses()[-1], trust_env=False).text
    finally:
        os.killpg(program.pid, signal.SIGTERM)
        program.wait(60)
