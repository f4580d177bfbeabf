"""The conformance suite as the author of another store runs it: by a command, and in pytest."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from agent.settings import ROOT

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "package.md").read_text(encoding="utf-8")
SUBJECT, IN_PYTEST = (block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "conformance" in block)
FORGETFUL = """
from agent.history.conformance import Subject
from agent.history.memory import MemoryStore


class Forgetful(MemoryStore):
    async def history(self, record, *, limit=None):
        return (await super().history(record, limit=limit))[1:]


async def open_store(folder, clock):
    return Forgetful(clock)


SUBJECT = Subject(open=open_store, without={"search"})
"""


def python(folder: Path, *arguments: str, subject: str = SUBJECT) -> subprocess.CompletedProcess[str]:
    (folder / "my_stores.py").write_text(subject)
    command = [sys.executable, *arguments]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def conformance(folder: Path, *arguments: str, subject: str = SUBJECT) -> subprocess.CompletedProcess[str]:
    return python(folder, "-m", "agent.history.conformance", *arguments, subject=subject)


@pytest.mark.full
def test_documented_command_reports_each_capability(tmp_path: Path) -> None:
    done = conformance(tmp_path, "my_stores:SUBJECT", "branches", "search", "raw", "ledger")
    assert done.returncode == 0, done.stderr
    lines = re.sub(r"\d+ of (\d+) laws", r"\1 laws", done.stdout).splitlines()
    assert re.fullmatch(r"branches   \d+ laws", lines[0])
    assert lines[3] == "ledger     not offered"
    assert re.fullmatch(r"PARTIAL: \d+ laws, 9 of 12 capabilities are offered", lines[-1])


@pytest.mark.full
def test_broken_law_is_described(tmp_path: Path) -> None:
    done = conformance(tmp_path, "my_stores:SUBJECT", "branches", "search", subject=FORGETFUL)
    assert done.returncode == 1, done.stderr
    assert "search     not offered" in done.stdout
    assert (
        "old_branch_remains (branches) is broken: After a retry, an edit and an undo, the earlier branches can still "
        "be read.\nthe history after a retry: found ['retried'], expected ['question', 'retried'].\n"
    ) in done.stdout
    assert done.stdout.splitlines()[-1].startswith("BROKEN: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Usage: "),
        (("my_stores:SUBJECT", "speed"), "Capabilities: base, "),
        (("my_stores:OTHER",), "There is no subject 'my_stores:OTHER': "),
        (("my_stores:open_store",), "'my_stores:open_store' is no Subject "),
    ],
)
def test_unknown_name_is_reported(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = conformance(tmp_path, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.full
def test_documented_tests_run(tmp_path: Path) -> None:
    (tmp_path / "test_my_stores.py").write_text(IN_PYTEST)
    options = ("-q", "-c", "/dev/null", "--rootdir", ".", "-o", "asyncio_mode=auto", "-k", "branch or old or race")
    done = python(tmp_path, "-m", "pytest", *options, "test_my_stores.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
