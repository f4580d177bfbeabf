"""docs/api.md says what the signatures and docstrings of the public names say."""

import re
import subprocess
import sys
from collections import Counter

import pytest

import agent
from tests.conftest import ROOT

pytestmark = pytest.mark.slow
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r"^##+ (agent.*)$", PAGE, re.MULTILINE)


def test_reference_is_up_to_date() -> None:
    command = [sys.executable, ".ci/api_reference.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")


def test_reference_has_every_public_name() -> None:
    assert [name for name in agent.__all__ if f"agent.{name}" not in HEADINGS] == []


def test_every_link_of_the_reference_leads_to_a_heading() -> None:
    found, anchors = Counter[str](), set[str]()
    for heading in HEADINGS:
        anchor = heading.replace(".", "").lower()
        anchors.add(f"{anchor}-{found[anchor]}" if found[anchor] else anchor)
        found[anchor] += 1
    links = set(re.findall(r"\]\(#([^)]+)\)", PAGE))
    assert len(links) > len(agent.__all__)
    assert links - anchors == set()
