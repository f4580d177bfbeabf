"""Runs the laws on a store, and reports for each capability what passed."""

import traceback
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from agent.history.conformance.laws import CAPABILITIES, Broken, Law, laws_for
from agent.history.conformance.trial import Trial, find_subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A law on a store. `failure` is None if the store keeps it."""

    law: Law
    failure: str | None = None


async def check(law: Law, name: str, folder: Path) -> None:
    """Check a law on the subject that "module:variable" names, in an empty folder. Raises `Broken` or what it meets."""
    async with Trial(name, folder) as trial:
        await law.check(trial)


async def check_all(name: str, capabilities: Collection[str] = CAPABILITIES) -> list[Outcome]:
    """Check the laws of these capabilities that apply to the subject of this name, each in an empty folder."""
    laws = laws_for(find_subject(name))
    return [await _outcome(law, name) for law in laws if law.capability in capabilities]


def report(name: str, outcomes: Sequence[Outcome], capabilities: Collection[str] = CAPABILITIES) -> bool:
    """Print the result of each capability and each broken law. Return True if no law is broken."""
    subject = find_subject(name)
    for capability in capabilities:
        own = [outcome for outcome in outcomes if outcome.law.capability == capability]
        passed = sum(outcome.failure is None for outcome in own)
        print(f"{capability:<10} {f'{passed} of {len(own)} laws' if own else 'not offered'}")
    broken = [outcome for outcome in outcomes if outcome.failure is not None]
    for outcome in broken:
        print(f"\n{outcome.law.name} ({outcome.law.capability}) is broken: {outcome.law.sentence}\n{outcome.failure}")
    offered = sum(map(subject.offers, CAPABILITIES))
    kind = "BROKEN" if broken else "FULL" if offered == len(CAPABILITIES) else "PARTIAL"
    passed = len(outcomes) - len(broken)
    print(f"\n{kind}: {passed} of {len(outcomes)} laws, {offered} of {len(CAPABILITIES)} capabilities are offered")
    return not broken


async def _outcome(law: Law, name: str) -> Outcome:
    try:
        with TemporaryDirectory(prefix="store-") as folder:
            await check(law, name, Path(folder))
    except Broken as error:
        return Outcome(law=law, failure=str(error))
    except Exception:
        return Outcome(law=law, failure=traceback.format_exc())
    return Outcome(law=law)
