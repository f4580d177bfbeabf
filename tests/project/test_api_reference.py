"""The reference of the public names, which `make docs` writes, has all of them, and its links lead somewhere."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import agent
from tests.conftest import ROOT

pytestmark = pytest.mark.slow


def test_reference_has_every_public_name_and_no_dead_link(tmp_path: Path) -> None:
    path = tmp_path / "api.md"
    subprocess.run([sys.executable, ".ci/api_reference.py", path], cwd=ROOT, check=True, timeout=200)
    page = path.read_text(encoding="utf-8")
    headings = re.findall(r"^##+ (agent.*)$", page, re.MULTILINE)
    assert [name for name in agent.__all__ if f"agent.{name}" not in headings] == []
    found, anchors = Counter[str](), set[str]()
    for heading in headings:
        anchor = heading.replace(".", "").lower()
        anchors.add(f"{anchor}-{found[anchor]}" if found[anchor] else anchor)
        found[anchor] += 1
    links = set(re.findall(r"\]\(#([^)]+)\)", page))
    assert len(links) > len(agent.__all__)
    assert links - anchors == set()
