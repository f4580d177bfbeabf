"""The conformance suite on each history store."""

from pathlib import Path

import pytest

from tests.support.history_laws import Law, check, laws_for
from tests.support.history_stores import SERVERS, SUBJECTS, subject_name

LONG = (
    "deleted_text_among_others_is_nowhere",
    "history_loads_in_linear_time",
    "queries_do_not_grow",
    "ten_megabytes_come_back",
)
"""Laws that take tenths of a second or more on each store."""


def marks(name: str, law: Law) -> list[pytest.MarkDecorator]:
    """Laws of processes run in the gate on SQLite. The rest of them are full."""
    needs_processes, is_of_a_server = "processes" in law.needs, name in SERVERS
    is_slow = is_of_a_server or needs_processes or law.name in LONG
    is_full = name != "sqlite" if needs_processes else is_of_a_server and law.name == LONG[0]
    return [pytest.mark.slow] * is_slow + [pytest.mark.full] * is_full


CASES = [
    pytest.param(law, subject_name(name), id=f"{name}-{law.name}", marks=marks(name, law))
    for name, subject in SUBJECTS.items()
    for law in laws_for(subject)
]


@pytest.mark.parametrize(("law", "name"), CASES)
async def test_law(law: Law, name: str, tmp_path: Path) -> None:
    await check(law, name, tmp_path)
