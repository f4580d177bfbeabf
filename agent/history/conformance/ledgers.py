"""Laws of a ledger, see `agent.suspension.ledgers`: exactly one use of an id is the first."""

import asyncio
from datetime import timedelta

from agent.history.conformance.laws import holds, law, same
from agent.history.conformance.trial import Trial
from agent.history.records import new_id, now


@law("ledger")
async def id_is_used_once(trial: Trial) -> None:
    """Only the first use of an id returns True, whatever the id."""
    ledger, later = trial.ledger(), now() + timedelta(hours=1)
    for id_ in (new_id(), "../../with/slashes\u00e9'--", "a\0b", "", "x" * 5000):
        uses = [await ledger.use(id_, None), await ledger.use(id_, later), await ledger.use(id_, None)]
        same(uses, [True, False, False], f"three uses of {id_[:40]!a}")
    id_ = new_id()
    same([await ledger.use(id_, later) for _ in range(3)], [True, False, False], "uses of an id that expires later")


@law("ledger")
async def one_of_many_concurrent_uses_is_first(trial: Trial) -> None:
    """Of concurrent uses of an id, exactly one is the first."""
    ledger = trial.ledger()
    for _ in range(5):
        id_ = new_id()
        same(sum(await asyncio.gather(*(ledger.use(id_, None) for _ in range(10)))), 1, "the first uses of ten")


@law("ledger")
async def only_expired_ids_are_forgotten(trial: Trial) -> None:
    """A ledger may forget an id that has expired, and no other."""
    ledger = trial.ledger()
    gone, kept, for_ever = new_id(), new_id(), new_id()
    for id_, end in ((gone, now() - timedelta(seconds=1)), (kept, now() + timedelta(hours=1)), (for_ever, None)):
        holds(await ledger.use(id_, end), "the first use of an id returned False")
    for _ in range(20):
        await ledger.use(new_id(), None)
    holds(not await ledger.use(kept, None), "an id was forgotten before its end")
    holds(not await ledger.use(for_ever, None), "an id without end was forgotten")
