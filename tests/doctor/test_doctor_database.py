"""The doctor connects to the server of the history, writes to it, and says what to do if that fails."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.doctor import storage
from agent.doctor.check import Check
from agent.settings import load_settings
from tests.support.postgres_server import PASSWORD, QUOTED, PostgresServer, shared_server, stop_shared_server

READER = "CREATE ROLE reader LOGIN PASSWORD 'reading'"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    yield shared_server()
    stop_shared_server()


async def examined(tmp_path: Path, url: str) -> Check:
    env = {"SWITCHBOARD_STORE": url, "SWITCHBOARD_DATA": str(tmp_path / "data"), "SWITCHBOARD_CONFIG": str(tmp_path)}
    (found,) = await storage.store(load_settings(tmp_path / "none.toml", env))
    assert not any(secret in found.message + found.fix for secret in (PASSWORD, QUOTED))
    return found


@pytest.mark.slow
async def test_working_database_is_well(tmp_path: Path, server: PostgresServer) -> None:
    with server.database() as url:
        assert (await examined(tmp_path, url)).state == "ok"
        assert (await examined(tmp_path, url)).state == "ok"
        assert server.run_sql("SELECT FROM conversations", database=url.rpartition("/")[2]) == []


async def test_faults_name_their_cure(tmp_path: Path, server: PostgresServer) -> None:
    server.run_sql(READER)
    reader = server.url().replace(f"switchboard:{QUOTED}", "reader:reading")
    for url, part, fix in (
        (server.url("nothing"), 'database "nothing" does not exist', "Start the database"),
        (server.url().replace(str(server.port), "1"), "no server listens there", "Start the database"),
        (reader, "permission denied for schema public", "Make a database of its own"),
        ("postgresql://ann:my@secret@host/chat", "%40", "Install the driver, or correct SWITCHBOARD_STORE"),
    ):
        found = await examined(tmp_path, url)
        assert (found.state, found.name) == ("fault", "store")
        assert part in found.message
        assert found.fix.startswith(fix)
