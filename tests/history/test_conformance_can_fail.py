"""Each law of the conformance suite can fail: a store with one fault breaks the law that is about it, and no others."""

from pathlib import Path

import pytest

from agent.history.conformance import LAWS, Broken, check, laws_for
from tests.support import careless_stores
from tests.support.broken_links import FAULTS_OF_LINKS
from tests.support.broken_replicas import FAULTS_OF_REPLICAS
from tests.support.broken_stores import FAULTS, FAULTS_OF_LEDGERS
from tests.support.careless_stores import CARELESS, FAULTS_OF_OTHERS, SUBJECTS

pytestmark = pytest.mark.full
BY_NAME = {law.name: law for law in LAWS}
LONG = {"ten_megabytes_come_back", "history_loads_in_linear_time", "cancelled_save_stores_all_or_nothing"}
"""Laws that take tenths of a second. They are only checked on a store that breaks them."""


@pytest.mark.parametrize(("kind", "expected"), CARELESS.items(), ids=[kind.__name__ for kind in CARELESS])
async def test_fault_breaks_its_laws_only(kind: type[object], expected: tuple[str, ...], tmp_path: Path) -> None:
    name, broken = f"{careless_stores.__name__}:SUBJECTS.{kind.__name__}", set[str]()
    for law in laws_for(SUBJECTS[kind.__name__]):
        if law.name not in LONG or law.name in expected:
            try:
                await check(law, name, tmp_path)
            except Broken:
                broken.add(law.name)
    assert broken == set(expected)


OTHERS = [
    pytest.param(name, law, id=f"{name}-{law}", marks=pytest.mark.slow if "processes" in BY_NAME[law].needs else ())
    for name, laws in FAULTS_OF_OTHERS.items()
    for law in laws
]


RACES = 10
"""The most times that a law is checked. On a busy machine, two processes can run one after the other."""


@pytest.mark.parametrize(("name", "law"), OTHERS)
async def test_fault_of_another_store_is_found(name: str, law: str, tmp_path: Path) -> None:
    async def check_often() -> None:
        for number in range(RACES):
            (tmp_path / str(number)).mkdir()
            await check(BY_NAME[law], f"{careless_stores.__name__}:{name}", tmp_path / str(number))

    with pytest.raises(Broken):
        await check_often()


def test_some_store_breaks_every_law() -> None:
    tables = (FAULTS, FAULTS_OF_LINKS, FAULTS_OF_REPLICAS, CARELESS, FAULTS_OF_OTHERS)
    found = {law for table in tables for laws in table.values() for law in laws} | set(FAULTS_OF_LEDGERS.values())
    assert found == set(BY_NAME)
