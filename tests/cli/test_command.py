"""`pip install -e .` gives `import agent` and the `switchboard` command."""

import os
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.conftest import ROOT
from tests.support.gate_rows import gate_rows

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the editable installation. Its dependencies are those of this Python."""
    folder = tmp_path_factory.mktemp("installed")
    options = ["--quiet", "--offline", "--no-deps", "--no-build-isolation", "--python", sys.executable]
    subprocess.run([".ci/uv", "pip", "install", *options, "--target", folder, "-e", "."], cwd=ROOT, check=True)
    return folder


def environment(installed: Path, **more: str) -> dict[str, str]:
    """Return an environment with the import path that Python would read from the installation."""
    (path,) = installed.glob("*.pth")
    return {**os.environ, "PYTHONPATH": path.read_text().strip(), **more}


def switchboard(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in an empty folder."""
    return subprocess.run(
        [installed / "bin" / "switchboard", *arguments],
        env=environment(installed),
        cwd=installed,
        capture_output=True,
        text=True,
        timeout=60,
    )


COMMANDS = ["chat", "doctor", "deploy"]


@pytest.mark.parametrize("command", gate_rows({name: name for name in COMMANDS}, ("chat",)))
def test_each_command_explains_its_options(installed: Path, command: str) -> None:
    found = switchboard(installed, command, "--help")
    assert (found.returncode, found.stderr) == (0, "")
    assert "--" in found.stdout


def test_command_lists_its_commands(installed: Path) -> None:
    said = switchboard(installed, "--help").stdout
    assert [command for command in COMMANDS if command not in said] == []


def test_unknown_command_is_explained(installed: Path) -> None:
    found = switchboard(installed, "serve")
    assert found.returncode == 2
    assert found.stderr.startswith("switchboard: there is no command 'serve'\n\nusage: ")


def test_command_alone_serves_the_page(installed: Path, tmp_path: Path) -> None:
    env = environment(
        installed, GRADIO_SERVER_PORT="0", VLLM_BASE_URL="http://127.0.0.1:9/v1", SWITCHBOARD_DATA=str(tmp_path)
    )
    page = subprocess.Popen(
        [installed / "bin" / "switchboard"], env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        assert page.stdout
        url = page.stdout.readline().removeprefix("The page is at ").strip()
        assert not url.endswith(":0"), "it says the port that it was given, not the one that it has taken"
        with urlopen(f"{url}/healthz", timeout=30) as answer:
            assert answer.status == 200
    finally:
        page.terminate()
        page.communicate(timeout=60)
