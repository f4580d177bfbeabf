"""Redis stores with deliberately broken replicas, and the laws that find their faults."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from agent.history import HistoryStore, OwnRun, UnfinishedRun
from agent.history.conformance import Subject
from agent.history.redis_replicas import RedisReplicas
from agent.history.redis_retention import RedisRetention
from agent.history.redis_runs import RedisRuns
from agent.history.redis_scripts import Script
from tests.support.redis_servers import redis

TAKE_ANY = Script("""
local run, replica = take(), take()
call('HSET', key('run', run), 'replica', replica)
return 1
""")


class TakesLiving(RedisReplicas):
    async def take(self, run_id: str) -> bool:
        return bool(await self._server.run(TAKE_ANY, run_id, self._id))


class LosesLiving(RedisReplicas):
    async def lost_runs(self, *, limit: int = 100) -> Sequence[UnfinishedRun]:
        return [UnfinishedRun(run_id="run", conversation_id="", owner="", saved=0)]


class LosesNothing(RedisReplicas):
    async def lost_runs(self, *, limit: int = 100) -> Sequence[UnfinishedRun]:
        return ()


class HasNoFence(RedisReplicas):
    @property
    def id(self) -> str:
        return "everybody"


class ForgetsOwners(RedisReplicas):
    async def request_stop(self, run_id: str, *, owner: str) -> bool:
        return await super().request_stop(run_id, owner="visitor:alice")

    async def watch(self, run_id: str, *, owner: str) -> None:
        await super().watch(run_id, owner="visitor:alice")


class ShowsAllStops(RedisReplicas):
    async def own_runs(self) -> Sequence[OwnRun]:
        return [OwnRun(one.run, is_stopped=True, is_watched=True) for one in await super().own_runs()]


class FindsEndedRuns(RedisReplicas):
    async def unfinished_run(self, conversation_id: str, *, owner: str) -> str | None:
        return "run"


class DeletesAnswered(RedisReplicas):
    async def is_answering(self, conversation_id: str) -> bool:
        return False


class KeepsForTheDead(RedisReplicas):
    """Counts the runs of replicas that are gone in a conversation that has expired."""

    async def is_answering(self, conversation_id: str) -> bool:
        self._seen: set[str] = getattr(self, "_seen", set())
        if await super().is_answering(conversation_id):
            self._seen.add(conversation_id)
        return conversation_id in self._seen


class NeverReserves(RedisReplicas):
    async def reserve(self, sizes: Mapping[str, int]) -> None: ...


class HasItsOwnClock(RedisReplicas):
    async def time(self) -> datetime:
        return await super().time() + timedelta(seconds=ord(self.id[0]))


class ForgetsReservations(RedisReplicas):
    async def reserved(self) -> Mapping[str, int]:
        return {}


FAULTS_OF_REPLICAS: dict[type[RedisReplicas], tuple[str, ...]] = {
    TakesLiving: (
        "run_of_living_replica_is_not_lost",
        "run_of_replica_that_left_is_lost",
        "one_of_many_takers_wins",
        "runs_of_deleted_conversation_are_not_lost",
    ),
    LosesLiving: ("run_of_living_replica_is_not_lost", "dead_and_stopped_replicas_lose_their_runs"),
    LosesNothing: ("run_of_replica_that_left_is_lost", "run_of_unjoined_process_is_lost_to_replicas"),
    HasNoFence: ("only_replica_of_a_run_writes_it",),
    ForgetsOwners: ("stop_reaches_the_replica_of_a_run", "watching_reaches_the_replica_of_a_run"),
    ShowsAllStops: ("stop_reaches_the_replica_of_a_run", "watching_reaches_the_replica_of_a_run"),
    FindsEndedRuns: ("every_replica_finds_unfinished_runs",),
    DeletesAnswered: ("replicas_know_what_must_not_be_deleted",),
    ForgetsReservations: ("reservations_are_seen_by_other_replicas",),
    NeverReserves: ("owner_in_use_elsewhere_is_not_erased",),
    HasItsOwnClock: ("replicas_share_one_clock",),
    KeepsForTheDead: ("replicas_know_what_must_not_be_deleted",),
}


def _subject(kind: type[RedisReplicas]) -> Subject:
    async def open_(folder: Path, clock: Callable[[], datetime]) -> HistoryStore:
        store = await redis(folder, clock)
        store.replicas = replicas = kind(store.server)
        store.runs = RedisRuns(store.server, replicas)
        store.retention = RedisRetention(store.server, replicas)
        return store

    return Subject(open=open_, replicas=True)


REPLICAS = {kind.__name__: _subject(kind) for kind in FAULTS_OF_REPLICAS}
