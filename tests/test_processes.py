"""Several processes may share the tests, and each still finds what its file started."""

import re
import subprocess
import sys
from pathlib import Path

from agent.settings import ROOT

CONFTEST = """
import pytest
from tests.conftest import pytest_collection_modifyitems, pytest_xdist_make_scheduler

@pytest.fixture
def browser(): pass
"""
FILE = """
import pytest

@pytest.mark.parametrize("number", range(5))
def test_in_it(number, browser): pass

@pytest.mark.parametrize("number", range(5))
def test_plainly(number): pass
"""


def test_file_runs_in_one_process_browser_tests_last(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text(FILE)
    asked = [sys.executable, "-m", "pytest", "-v", "-n", "2", "-p", "no:cacheprovider", "."]
    done = subprocess.run(
        asked, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False
    )
    ran = re.findall(r"\[(gw\d)\].*PASSED test_(\w)\.py::test_(\w+)", done.stdout)
    assert len(ran) == 30, done.stdout + done.stderr
    assert {worker for worker, _, _ in ran} == {"gw0", "gw1"}
    for name in "abc":
        for kind in ("in_it", "plainly"):
            assert len({worker for worker, file, test in ran if (file, test) == (name, kind)}) == 1
    for worker in ("gw0", "gw1"):
        kinds = [test for who, _, test in ran if who == worker]
        assert kinds == sorted(kinds, reverse=True)
