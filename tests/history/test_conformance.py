"""The conformance suite on each history store."""

from pathlib import Path

import pytest

from agent.history.conformance import LAWS, Law, check
from tests.support.history_stores import SUBJECTS, subject_name

SLOW = ("processes",)

CASES = [
    pytest.param(law, subject_name(name), id=f"{name}-{law.name}", marks=[pytest.mark.slow] * (law.capability in SLOW))
    for name, subject in SUBJECTS.items()
    for law in LAWS
    if subject.offers(law.capability)
]


@pytest.mark.parametrize(("law", "name"), CASES)
async def test_law(law: Law, name: str, tmp_path: Path) -> None:
    await check(law, name, tmp_path)
