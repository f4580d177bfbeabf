"""The faults that only a history on a server can have: races, kills, a server that is away, and what is left on it."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from agent.errors import ConfigError, HistoryError, NotFound
from agent.history import Conversation, HistoryStore, open_store
from agent.history.codec import dump_entries, load_conversations
from agent.history.sql.postgres import CONNECTIONS, PostgresStore, escape, unescape
from tests.support.history_laws import ALICE, batch, chain, grown, prompt, started
from tests.support.postgres_server import PASSWORD, QUOTED, PostgresServer, programs_with_trigrams, shared_server

ROOT = Path(__file__).parents[2]
TABLES = ("conversations", "entries", "entry_texts", "runs", "run_events")

pytestmark = pytest.mark.slow


@pytest.fixture
def server() -> PostgresServer:
    return shared_server()


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    with server.database() as url:
        yield url


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that a test can stop."""
    server = PostgresServer()
    server.start()
    yield server
    server.remove()


@pytest.mark.slow
async def test_script_without_close_still_ends(url: str) -> None:
    script = """
import asyncio, sys
from agent.history.sql.postgres import PostgresStore
async def main():
    store = await PostgresStore.open(sys.argv[1])
    await asyncio.gather(*(store.list("ann") for _ in range(20)))  # new connections are being made
asyncio.run(main())
"""
    command = [sys.executable, "-c", script, url]
    done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, timeout=30, check=False)
    assert done.returncode == 0


# Cancellation


@pytest.mark.slow
async def test_cancellation_at_any_await_spoils_no_connection(server: PostgresServer) -> None:
    with server.database() as url:
        async with aclosing(await PostgresStore.open(url)) as store:
            conversation = await store.save(Conversation(owner=ALICE))
            for ticks in range(90):
                calls = (
                    store.list(ALICE),
                    store.search(ALICE, "many"),
                    grown(
                        store,
                        conversation,
                        chain(*map(prompt, ("one of many", "and another")), after=conversation.head_id),
                    ),
                    store.runs.append(batch(conversation, 1, "text", run=f"run {ticks}")),
                )
                tasks = [asyncio.ensure_future(call) for call in calls]
                for _ in range(ticks):
                    await asyncio.sleep(0)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                stored = await store.get(conversation.id, owner=ALICE)
                assert stored.revision in (conversation.revision, conversation.revision + 1)
                assert len(await store.history(stored)) == 2 * (stored.revision - 1)
                conversation = stored
            assert conversation.revision > 1
        left = server.run_sql("SELECT count(*) FROM pg_stat_activity WHERE datname LIKE 'test_%'")
        assert left == [(0,)]


async def test_connections_are_few_and_free_again(server: PostgresServer) -> None:
    with server.database() as url:
        async with aclosing(await PostgresStore.open(url)) as store:
            conversations = await asyncio.gather(*(store.save(Conversation(owner=ALICE)) for _ in range(60)))
            await asyncio.gather(*(store.get(conversation.id, owner=ALICE) for conversation in conversations))
            states = server.run_sql("SELECT state FROM pg_stat_activity WHERE datname LIKE 'test_%'")
            assert len(states) <= CONNECTIONS
            assert {state for (state,) in states} == {"idle"}


# A server that is away


async def test_restarted_server_is_used_again(own_server: PostgresServer) -> None:
    async with aclosing(await PostgresStore.open(own_server.url())) as store:
        conversation, entries = await started(store, "before")
        await asyncio.gather(*(store.list(ALICE) for _ in range(20)))  # several connections
        for how in (signal.SIGINT, signal.SIGQUIT):
            own_server.stop(how)
            own_server.start()
            assert await asyncio.gather(*(store.history(conversation) for _ in range(20))) == [entries] * 20
        conversation = await grown(store, conversation, chain(prompt("after"), after=conversation.head_id))
        own_server.stop()
        for call in (store.list(ALICE), store.save(conversation), store.runs.unfinished()):
            with pytest.raises(HistoryError, match="Nothing can be kept at the moment") as caught:
                await call
            assert f"postgres at 127.0.0.1:{own_server.port} cannot be reached" in str(caught.value)
            assert_no_password(caught.value)
        own_server.start()
        await recovered(store)
        assert await store.get(conversation.id, owner=ALICE) == conversation


async def recovered(store: HistoryStore) -> None:
    """Wait until the store answers, which a failed contact delays for a moment."""
    async with asyncio.timeout(60):
        while True:
            try:
                await store.list(ALICE)
                return
            except HistoryError:
                await asyncio.sleep(0.05)


@pytest.mark.full
async def test_silent_server_is_not_awaited_for_ever(
    own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aclosing(await PostgresStore.open(own_server.url())) as store:
        conversation, _ = await started(store)
        monkeypatch.setattr("agent.history.sql.postgres.POOL_SECONDS", 0.5)
        monkeypatch.setattr("agent.history.sql.postgres.OPERATION_SECONDS", 0.5)
        own_server.pause(on=True)
        try:
            with pytest.raises(HistoryError, match="it does not answer"):
                await asyncio.wait_for(store.save(conversation), 30)
        finally:
            own_server.pause(on=False)
        monkeypatch.undo()
        await recovered(store)
        assert (await store.get(conversation.id, owner=ALICE)).revision in (1, 2)  # the save can have been on its way


async def test_store_opens_before_its_server(own_server: PostgresServer) -> None:
    own_server.stop()
    async with aclosing(await open_store(own_server.url(), folder=ROOT)) as store:
        with pytest.raises(HistoryError, match="Start it, or correct SWITCHBOARD_STORE"):
            await store.list(ALICE)
        own_server.start()
        await recovered(store)
        await started(store)


def assert_no_password(error: BaseException | None) -> None:
    """Check the error and all that it was raised from."""
    while error is not None:
        for said in (str(error), repr(error)):
            assert not any(part in said for part in (PASSWORD, QUOTED, "secret", "tests#100"))
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize(
    ("part", "other", "reason"),
    [
        ("PORT", "1", "no server listens there"),
        (QUOTED, QUOTED[:-3], "it rejects the user or the password"),
        ("/postgres", "/nothing", 'database "nothing" does not exist'),
        ("postgresql", "postgres", "at 127"),
    ],
    ids=["no server", "wrong password", "no database", "short scheme"],
)
async def test_unreachable_server_is_named_without_password(
    server: PostgresServer, part: str, other: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = server.url("nowhere" if part == "postgresql" else "postgres")
    wrong = wrong.replace(str(server.port) if part == "PORT" else part, other)
    async with aclosing(await open_store(wrong, folder=ROOT)) as store:
        assert isinstance(store, PostgresStore)
        for _ in range(3):
            with pytest.raises(HistoryError, match=reason) as caught:
                await store.list(ALICE)
            assert_no_password(caught.value)
            assert "\n" not in str(caught.value)
        assert_no_password(HistoryError(repr(store) + repr(vars(store)) + repr(vars(store._database))))
    assert len([line for line in caplog.messages if "history database" in line]) == 1
    assert_no_password(HistoryError(caplog.text))


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:{PASSWORD}@localhost/chat",
        "postgresql://ann:my@secret@localhost/chat",
        "postgresql://ann:my/secret@localhost/chat",
        "postgresql://ann:secret@localhost:secret/chat",
        "postgresql://ann:secret@localhost/chat?nothing=secret",
        "postgresql://ann:%secret@localhost/chat",
    ],
)
async def test_unreadable_url_is_not_quoted(url: str) -> None:
    with pytest.raises(ConfigError, match="%40") as caught:
        await open_store(url, folder=ROOT)
    assert "secret" not in str(caught.value).replace("password", "")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_missing_driver_is_named() -> None:
    script = """
import asyncio, sys
from pathlib import Path
from agent.errors import ConfigError
from agent.history import open_store
assert "psycopg" not in sys.modules
sys.modules["psycopg"] = None
try:
    asyncio.run(open_store("postgresql://ann:secret@localhost/chat", folder=Path()))
except ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert "pip install -r requirements-stores.txt, or pip install '.[postgres]'" in done.stdout, done.stderr
    assert "secret" not in done.stdout


# The stored text


async def test_odd_text_is_kept_byte_for_byte(server: PostgresServer, url: str) -> None:
    odd = "NUL \0, backslash \\ \\0 \\u0000, lone \ud83d, joined \ud83d\ude00, \x1f, \ufffe"
    name = url.rpartition("/")[2]
    async with aclosing(await PostgresStore.open(url)) as store:
        conversation, entries = await started(store, odd, owner="own\0er\\")
        conversation = await store.save(replace(conversation, title=odd, pending=("call\0",)))
        whole = odd.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        assert conversation.title == whole == (await store.get(conversation.id, owner="own\0er\\")).title
        assert await store.get(conversation.id, owner="own\0er\\") == conversation
        assert server.run_sql("SELECT entry FROM entries", database=name) == [(text,) for text in dump_entries(entries)]
        ((kept,),) = server.run_sql("SELECT record FROM conversations", database=name)
        assert load_conversations([str(kept)]) == [conversation]
        assert await store.retention.sizes(owners="own\0") == {"own\0er\\": await store.retention.size()}
        assert (await store.label(conversation.id, owner="own\0er\\", title="a\0b", instead_of=whole)).title == "a\0b"
        plain, _ = await started(store, owner="plain")
        assert await store.get(plain.id, owner="plain") == plain


@pytest.mark.parametrize("text", ["", "\0", "\\", "\\0", "\\\\0\0", "\ud800\udc00\udfff", "a\\u0000"], ids=ascii)
def test_escaped_text_comes_back(text: str) -> None:
    assert unescape(escape(text)) == text
    assert "\0" not in escape(text)
    escape(text).encode()


async def test_deleted_text_leaves_the_disk_with_a_vacuum(server: PostgresServer) -> None:
    with server.database() as url, psycopg.connect(url, autocommit=True) as raw:

        def found() -> list[str]:
            tables = [name for (name,) in raw.execute("SELECT relname FROM pg_class WHERE relkind IN ('r', 't')")]
            own = [name for name in tables if name in TABLES]
            assert len(own) == len(TABLES)
            having = SQL("SELECT FROM {} t WHERE t::text LIKE '%hunter2%'")
            return [one for one in own if raw.execute(having.format(Identifier(one))).rowcount]

        async with aclosing(await PostgresStore.open(url)) as store:
            await started(store, "kept")
            conversation, _ = await started(store, "hunter2 " * 5000)
            conversation = await store.save(
                replace(conversation, title="hunter2"), [], batch(conversation, 1, "hunter2")
            )
            assert found() == ["conversations", "entries", "entry_texts", "run_events"]
            await store.delete(conversation.id, owner=ALICE)
            assert found() == []
            assert len(await store.list(ALICE)) == 1
        # The pages on the disk forget it with the next vacuum.
        raw.execute("VACUUM FULL")
        raw.execute("CHECKPOINT")
        ((place,),) = raw.execute("SELECT pg_relation_filepath('entries')").fetchall()
        folder = (server.data / str(place)).parent
        assert not [file for file in folder.iterdir() if b"hunter2" in file.read_bytes()]


# Search with trigrams


async def test_trigrams_find_the_same() -> None:
    programs = programs_with_trigrams()
    if programs is None:
        pytest.skip("No PostgreSQL with pg_trgm is on this machine")
    server = PostgresServer(programs)
    try:
        server.start()
        async with aclosing(await PostgresStore.open(server.url())) as store:
            conversation, entries = await started(
                store, "Grüße 100%_sure \\ a'b", "東京タワーの高さ", "needle in the hay"
            )
            for number in range(30):
                await started(store, *(f"{number} hay {word}" for word in range(30)), owner="visitor:other")
            server.run_sql("ANALYZE", "ALTER DATABASE postgres SET enable_seqscan = off")
            places = {query: [hit.entry_id for hit in await store.search(ALICE, query)] for query in SEARCHED}
        assert places == {query: [entries[place].id] if place is not None else [] for query, place in SEARCHED.items()}
        plan = server.run_sql("EXPLAIN SELECT FROM entry_texts WHERE text LIKE '%needle%'")
        assert "entry_texts_by_trigram" in str(plan)
        assert conversation.revision == 1
    finally:
        server.remove()


SEARCHED = {
    "grüsse": 0,
    "100%_SURE": 0,
    "\\": 0,
    "a'B": 0,
    "東京": 1,
    "高": 1,
    "needle hay": 2,
    "100x": None,
    "eedl": 2,
}


# The schema


async def test_newer_schema_is_refused_and_untouched(server: PostgresServer) -> None:
    with server.database() as url:
        async with aclosing(await PostgresStore.open(url)) as store:
            await started(store)
        name = url.rpartition("/")[2]
        with psycopg.connect(url, autocommit=True) as raw:
            raw.execute("INSERT INTO switchboard_schema (version) VALUES (99)")
        async with aclosing(await PostgresStore.open(url)) as store:
            with pytest.raises(HistoryError, match=f"{name} at .* schema 99, of a newer version"):
                await store.list(ALICE)


async def test_older_schema_is_refused_and_untouched(server: PostgresServer) -> None:
    with server.database() as url:
        async with aclosing(await PostgresStore.open(url)) as store:
            await started(store)
        with psycopg.connect(url, autocommit=True) as raw:
            raw.execute("UPDATE switchboard_schema SET version = 6")
        async with aclosing(await PostgresStore.open(url)) as store:
            with pytest.raises(HistoryError, match=r"schema 6, of an older version .* export the chats"):
                await store.list(ALICE)
        with psycopg.connect(url, autocommit=True) as raw:
            assert raw.execute("SELECT count(*) FROM entries").fetchone() == (1,)


async def test_other_encoding_is_refused(server: PostgresServer) -> None:
    with server.database("ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0") as url:
        async with aclosing(await PostgresStore.open(url)) as store:
            with pytest.raises(HistoryError, match="its encoding is SQL_ASCII instead of UTF8"):
                await store.list(ALICE)


async def test_damaged_entry_names_the_database_and_no_text(server: PostgresServer, url: str) -> None:
    name = url.rpartition("/")[2]
    async with aclosing(await PostgresStore.open(url)) as store:
        conversation, _ = await started(store)
        server.run_sql("""UPDATE entries SET entry = '{"message": "secret"}'""", database=name)
        with pytest.raises(HistoryError, match=rf"{name} at 127\.0\.0\.1.*damaged") as caught:
            await store.history(conversation)
        assert "secret" not in str(caught.value)
        await store.delete(conversation.id, owner=ALICE)
        with pytest.raises(NotFound):
            await store.history(conversation)
