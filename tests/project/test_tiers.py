"""The promises of the gate, and when `.ci/run` runs a target again."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from agent.settings import ROOT

PROMISE = re.compile(r'mark\.gate\(\s*"([^"]+)"')
ROW = re.compile(r"^- ((?:(?!\n- ).)+?)\s`(test_\w+)`$", re.MULTILINE | re.DOTALL)


DEPENDENCIES = {
    "test-vllm": ["agent/run.py", "agent/providers/errors.py", "requirements-app.txt", "tests/local/test_vllm.py"],
    "test-container": ["Dockerfile", "agent/web/server.py", "agent/models/weights.py", "requirements-gpu.txt"],
    "test-space": [
        "README.md",
        "requirements.txt",
        "agent/tools/mcp_sdk.py",
        "agent/system/project.py",
        "tests/tools/test_mcp.py",
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("target", DEPENDENCIES)
def test_target_runs_again_after_a_change(tmp_path: Path, target: str) -> None:
    def is_unchanged(*options: str) -> bool:
        command = [tmp_path / ".ci" / "unchanged", *options, target]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0

    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    for name in (".ci/unchanged", "LICENSE", "agent/web/ui/modules/page.js", *DEPENDENCIES[target]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    assert not is_unchanged()
    assert is_unchanged("--passed")
    for name in (*DEPENDENCIES[target], "LICENSE", "agent/web/ui/modules/page.js"):
        before = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(before + b"\n")
        assert is_unchanged() == (name not in DEPENDENCIES[target]), name
        (tmp_path / name).write_bytes(before)
    assert is_unchanged()


def test_readme_lists_each_promise_with_its_test() -> None:
    marked = {promise for path in (ROOT / "tests").rglob("test_*.py") for promise in PROMISE.findall(path.read_text())}
    listed = ROW.findall((ROOT / "tests" / "README.md").read_text())
    assert {" ".join(promise.split()) for promise, _ in listed} == marked
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [test for _, test in listed if f"def {test}(" not in sources] == []
