"""The conformance suite finds the fault of each deliberately broken store, with the law that is about it."""

import sys
from pathlib import Path

import pytest

from agent.history import HistoryStore
from agent.history.conformance import CAPABILITIES, LAWS, Broken, check
from tests.support import broken_links, broken_replicas, broken_stores
from tests.support.broken_links import FAULTS_OF_LINKS
from tests.support.broken_replicas import FAULTS_OF_REPLICAS
from tests.support.broken_stores import FAULTS, FAULTS_OF_LEDGERS

pytestmark = pytest.mark.full
BY_NAME = {law.name: law for law in LAWS}


@pytest.mark.parametrize(
    ("kind", "law"),
    [
        pytest.param(
            kind, law, id=f"{kind.__name__}-{law}", marks=pytest.mark.slow if "processes" in BY_NAME[law].needs else ()
        )
        for kind, laws in FAULTS.items()
        for law in laws
    ],
)
async def test_fault_is_found(kind: type[HistoryStore], law: str, tmp_path: Path) -> None:
    with pytest.raises(Broken):
        await check(BY_NAME[law], f"{broken_stores.__name__}:BROKEN.{kind.__name__}", tmp_path)


@pytest.mark.parametrize(("kind", "law"), [(kind, law) for kind, laws in FAULTS_OF_LINKS.items() for law in laws])
async def test_fault_of_links_is_found(kind: type[object], law: str, tmp_path: Path) -> None:
    with pytest.raises(Broken):
        await check(BY_NAME[law], f"{broken_links.__name__}:LINKS.{kind.__name__}", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "law"), [(kind, law) for kind, laws in FAULTS_OF_REPLICAS.items() for law in laws])
async def test_fault_of_replicas_is_found(kind: type[object], law: str, tmp_path: Path) -> None:
    with pytest.raises(Broken):
        await check(BY_NAME[law], f"{broken_replicas.__name__}:REPLICAS.{kind.__name__}", tmp_path)


@pytest.mark.parametrize(("kind", "law"), FAULTS_OF_LEDGERS.items())
async def test_fault_of_a_ledger_is_found(kind: type[object], law: str, tmp_path: Path) -> None:
    with pytest.raises(Broken):
        await check(BY_NAME[law], f"{broken_stores.__name__}:LEDGERS.{kind.__name__}", tmp_path)


def test_laws_are_described() -> None:
    assert len(BY_NAME) == len(LAWS)
    assert all(law.sentence.endswith(".") for law in LAWS)
    assert {law.capability for law in LAWS} == set(CAPABILITIES)
    assert "pytest" not in {name.partition(".")[0] for law in LAWS for name in vars(sys.modules[law.check.__module__])}
