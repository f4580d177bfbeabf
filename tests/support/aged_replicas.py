"""Replicas that were last seen a while ago, as their server tells, without waiting for it."""

import asyncio
from pathlib import Path

import psycopg
from redis import Redis

from tests.support import postgres_server, redis_servers


async def age(name: str, folder: Path, seconds: float, *, only: str = "") -> None:
    """Move the last signs of life of all replicas into the past, or of `only` this one."""
    await asyncio.to_thread(_age, name, folder, seconds, only)


def _age(name: str, folder: Path, seconds: float, only: str) -> None:
    if name == "postgres":
        with psycopg.connect(postgres_server.url_of(folder), autocommit=True) as connection:
            connection.execute(
                "UPDATE replicas SET seen_at = seen_at - make_interval(secs => %(seconds)s) WHERE %(id)s IN ('', id)",
                {"seconds": seconds, "id": only},
            )
        return
    address, _, query = redis_servers.shared_url(folder).partition("?")
    key = f"{{{query.removeprefix('prefix=')}}}:replicas"
    with Redis.from_url(address) as client:
        for id_ in client.zrange(key, 0, -1):  # type: ignore[union-attr]
            if only in ("", id_.decode()):
                client.zincrby(key, -seconds, id_)


async def last_seen(name: str, folder: Path, id_: str) -> float:
    """Return when the server last saw this replica, in seconds of its clock."""
    return await asyncio.to_thread(_last_seen, name, folder, id_)


def _last_seen(name: str, folder: Path, id_: str) -> float:
    if name == "postgres":
        with psycopg.connect(postgres_server.url_of(folder), autocommit=True) as connection:
            query = "SELECT extract(epoch FROM seen_at)::float8 FROM replicas WHERE id = %s"
            row = connection.execute(query, [id_]).fetchone()
            return row[0] if row else 0.0
    address, _, query = redis_servers.shared_url(folder).partition("?")
    with Redis.from_url(address) as client:
        return float(client.zscore(f"{{{query.removeprefix('prefix=')}}}:replicas", id_) or 0)  # type: ignore[arg-type]
