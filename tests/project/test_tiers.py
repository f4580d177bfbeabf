"""The tiers of the tests: their tests, order and processes, and the skips and weights that they allow."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent.settings import ROOT
from tests import mutants

pytestmark = pytest.mark.slow

CONFTEST = """
import pytest

pytest_plugins = ["tests.tiers", "tests.reruns"]

@pytest.fixture
def browser(): pass
"""
FILE = """
import pytest

@pytest.fixture(scope="module", params=["nginx", "caddy"])
def proxy(request): return request.param

@pytest.mark.parametrize("number", range(5))
def test_in_it(number, proxy, browser): pass

@pytest.mark.parametrize("number", range(5))
def test_plainly(number, proxy): pass
"""
SLOW = """
import time
from pathlib import Path

def test_in_it(browser):
    Path("begun").touch()
    time.sleep(3)
"""
QUICK = """
import time
from pathlib import Path

def test_in_it(browser):
    while not Path("begun").exists():
        time.sleep(0.01)
"""
OTHERS = """
import pytest

@pytest.mark.gate("A promise.")
def test_promise(browser): pass

def test_other(browser): pass

def test_skipped(): pytest.skip("no such machine")
"""
ONCE = """
import pytest
from pathlib import Path

def fail_once(name):
    if not Path(name).exists():
        Path(name).touch()
        raise ValueError("the first time")

@pytest.mark.parametrize("name", NAMES)
def test_it(name): fail_once(name)
"""
PROMISE = re.compile(r'mark\.gate\(\s*"([^"]+)"')
ROW = re.compile(r"^- ((?:(?!\n- ).)+?)\s`(test_\w+)`$", re.MULTILINE | re.DOTALL)


def run(folder: Path, *arguments: str) -> str:
    """Run pytest over the tests in `folder` and return what it prints."""
    (folder / "conftest.py").write_text(CONFTEST)
    asked = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *arguments, "."]
    done = subprocess.run(
        asked, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False
    )
    return f"{done.stdout}{done.stderr}\nstatus {done.returncode}"


@pytest.mark.full
def test_file_runs_in_one_process_browser_tests_last(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text(FILE)
    for name in "defgh":  # the quick ones wait for the slow one, or the other process might run them all before it
        (tmp_path / f"test_{name}.py").write_text(SLOW if name == "d" else QUICK)
    said = run(tmp_path, "-n", "2")
    ran = re.findall(r"\[(gw\d)\].*PASSED test_(\w)\.py::test_(\w+)", said)
    assert len(ran) == 65, said
    assert {worker for worker, _, _ in ran} == {"gw0", "gw1"}
    for name in "abc":
        for kind in ("in_it", "plainly"):
            assert len({worker for worker, file, test in ran if (file, test) == (name, kind)}) == 1
    for worker in ("gw0", "gw1"):
        kinds = [test for who, _, test in ran if who == worker]
        assert kinds == sorted(kinds, reverse=True)
    (slow,) = [who for who, file, _ in ran if file == "d"]
    held = [file for who, file, _ in ran if who == slow and file > "d"]
    assert len(held) == 1, "more tests waited behind the slow one than the next, while the other process had none"


@pytest.mark.full
def test_gate_runs_browser_tests_with_a_promise(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(OTHERS)
    assert set(re.findall(r"::(\w+) PASSED", run(tmp_path, "-m", "not full"))) == {"test_promise"}
    assert set(re.findall(r"::(\w+) PASSED", run(tmp_path))) == {"test_promise", "test_other"}


@pytest.mark.full
@pytest.mark.parametrize("processes", ["0", "2"])
def test_unlisted_skip_is_a_failure(tmp_path: Path, processes: str) -> None:
    (tmp_path / "test_it.py").write_text(OTHERS)
    assert run(tmp_path, "-n", processes).endswith("status 0")
    said = run(tmp_path, "-n", processes, "--only-listed-skips")
    assert "SKIPPED but not in .ci/skips: test_it.py::test_skipped" in said
    assert said.endswith("status 1")


@pytest.mark.full
@pytest.mark.parametrize("processes", ["0", "2"])
def test_failed_test_runs_once_more(tmp_path: Path, processes: str) -> None:
    (tmp_path / "test_it.py").write_text(f"NAMES = ['a/b c', 'd']\n{ONCE}")
    (tmp_path / "a").mkdir()
    said = run(tmp_path, "-n", processes, "--rerun-alone")
    for name in ("a/b c", "d"):
        assert f"flaky: test_it.py::test_it[{name}] failed beside other tests and passed alone" in said
    assert said.endswith("status 0")
    assert "2 flaky in" in said
    assert "ValueError: the first time" in said


@pytest.mark.full
@pytest.mark.parametrize("names", [list("abcd"), ["absent/a"]], ids=["four", "twice"])
def test_other_failures_stay_failures(tmp_path: Path, names: list[str]) -> None:
    (tmp_path / "test_it.py").write_text(f"NAMES = {names}\n{ONCE}")
    said = run(tmp_path, "-n", "2", "--rerun-alone")
    assert said.endswith("status 1")
    assert "flaky: " not in said


DEPENDENCIES = {
    "test-vllm": ["agent/run.py", "agent/providers/errors.py", "requirements-app.txt", "tests/local/test_vllm.py"],
    "test-container": ["Dockerfile", "agent/web/server.py", "agent/local/weights.py", "requirements-gpu.txt"],
    "test-space": [
        "README.md",
        "requirements.txt",
        "agent/tools/mcp_sdk.py",
        "agent/system/project.py",
        "tests/tools/test_mcp.py",
    ],
}


@pytest.mark.parametrize("target", DEPENDENCIES)
def test_target_runs_again_after_a_change(tmp_path: Path, target: str) -> None:
    def is_unchanged(*options: str) -> bool:
        command = [tmp_path / ".ci" / "unchanged", *options, target]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0

    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    for name in (".ci/unchanged", "LICENSE", "agent/web/ui/page.js", *DEPENDENCIES[target]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    assert not is_unchanged()
    assert is_unchanged("--passed")
    for name in (*DEPENDENCIES[target], "LICENSE", "agent/web/ui/page.js"):
        before = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(before + b"\n")
        assert is_unchanged() == (name not in DEPENDENCIES[target]), name
        (tmp_path / name).write_bytes(before)
    assert is_unchanged()


def test_readme_lists_each_promise_with_its_test() -> None:
    marked = {promise for path in (ROOT / "tests").rglob("test_*.py") for promise in PROMISE.findall(path.read_text())}
    listed = ROW.findall((ROOT / "tests" / "README.md").read_text())
    assert {" ".join(promise.split()) for promise, _ in listed} == marked - {"A promise."}
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [test for _, test in listed if f"def {test}(" not in sources] == []


@pytest.mark.parametrize(
    ("unbroken", "broken", "result"),
    [(0, 1, "found"), (0, 0, "MISSED"), *((0, status, "STALE") for status in (2, 3, 4, 5, -9)), (1, 1, "STALE")],
)
def test_only_a_test_that_fails_has_found_a_break(tmp_path: Path, unbroken: int, broken: int, result: str) -> None:
    """Pytest ends with 2 if a test cannot be collected, with 5 if there is none, and with -9 if it is killed."""
    (code := tmp_path / "code.py").write_text("number = 1\n")
    tried = list[str]()

    def run() -> int:
        tried.append(code.read_text())
        return broken

    assert mutants.judge(code, "1", "2", run, unbroken).startswith(result)
    assert tried == ([] if unbroken else ["number = 2\n"])
    assert mutants.judge(code, "3", "2", run, 0).startswith("STALE")
    assert code.read_text() == "number = 1\n"
