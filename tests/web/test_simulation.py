"""Many conversations on several processes, with a store, a model and processes that fail by a seed."""

from pathlib import Path

import pytest

from tests.support.simulation import simulate
from tests.tiers import in_full_tier


@pytest.mark.slow
def test_no_fault_loses_or_repeats_what_was_acknowledged(tmp_path: Path) -> None:
    """Every acknowledged message is stored once, every answer ends, and each branch is a history that servers accept.

    `python -m tests.support.simulation SEED` plays one seed again.
    """
    for seed in range(3000 if in_full_tier() else 60):
        try:
            simulate(seed, tmp_path)
        except BaseException as failure:
            failure.add_note(f"seed {seed}")
            raise
