"""The conformance suite on each history store."""

from pathlib import Path

import pytest

from tests.support.history_laws import Law, check, laws_for
from tests.support.history_stores import FILE_LEDGER, SERVERS, SUBJECTS, subject_name


def marks(name: str, law: Law) -> list[pytest.MarkDecorator]:
    """Laws that need processes run in the gate on one store of each engine: SQLite and Redis."""
    processes = "processes" in law.needs
    found = [pytest.mark.slow] if name in SERVERS or processes else []
    return [*found, pytest.mark.full] if processes and name not in ("sqlite", "redis") else found


CASES = [
    pytest.param(law, subject_name(name), id=f"{name}-{law.name}", marks=marks(name, law))
    for name, subject in {**SUBJECTS, "FILE_LEDGER": FILE_LEDGER}.items()
    for law in laws_for(subject)
]


@pytest.mark.parametrize(("law", "name"), CASES)
async def test_law(law: Law, name: str, tmp_path: Path) -> None:
    await check(law, name, tmp_path)
