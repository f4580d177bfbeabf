"""Many conversations on several processes, with a store, a model and processes that fail by a seed."""

import re
from pathlib import Path

import pytest

from agent.settings import ROOT
from tests.support.simulation import main, virtual_time
from tests.tiers import in_full_tier


@pytest.mark.slow
def test_no_fault_loses_or_repeats_what_was_acknowledged(tmp_path: Path) -> None:
    """Every acknowledged message is stored once, every answer ends, and each branch is a history that servers accept.

    `python -m tests.support.simulation SEED` plays one seed again.
    """
    with virtual_time() as simulate:
        for seed in range(3000 if in_full_tier() else 60):
            try:
                simulate(seed, tmp_path)
            except BaseException as failure:
                failure.add_note(f"seed {seed}")
                raise


@pytest.mark.slow
def test_command_of_the_documentation_plays_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    commands = re.findall(r"python -m tests\.support\.simulation (.+)", (ROOT / "docs/package.md").read_text())
    assert commands[0].isdecimal()
    assert main([commands[0]]) == 0
    assert re.match(r"[1-9]\d* conversations, 0 of 1 seeds broke a law", capsys.readouterr().out)
