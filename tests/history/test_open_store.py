"""Which store a URL opens, and what lies beside it."""

from asyncio import StreamReader, StreamWriter, start_server
from contextlib import aclosing
from pathlib import Path

import pytest

from agent.errors import ConfigError, StoreUnavailable, cause_of
from agent.history import open_store
from agent.history.open_store import other_histories, sqlite_path
from agent.history.server_errors import connection_reason, refusal_reason
from agent.suspension.ledger import ledger_error
from tests.support.history_stores import ALICE, started


@pytest.mark.parametrize("url", ["sqlite", "sqlite:///{}/other.db", "json", "json:talks", "json:{}/talks"])
async def test_url_names_the_same_data_again(url: str, tmp_path: Path) -> None:
    url = url.format(tmp_path)
    async with aclosing(await open_store(url, folder=tmp_path)) as store:
        conversation, _ = await started(store)
    async with aclosing(await open_store(url, folder=tmp_path)) as store:
        assert await store.list(ALICE) == [conversation]


@pytest.mark.parametrize("url", ["sqlite:////a/b.db", "sqlite:/a/b.db"])
def test_file_of_a_sqlite_history(url: str, tmp_path: Path) -> None:
    assert sqlite_path(url, tmp_path) == Path("/a/b.db")
    assert sqlite_path(url.replace("/a/", "a/"), tmp_path) == Path("a/b.db")


async def test_unknown_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no history store for 'carrier-pigeon'"):
        await open_store("carrier-pigeon://coop", folder=tmp_path)


SERVERS = {
    "no address is known for its host": ("redis://:hush@none.invalid:1", "postgresql://ann:hush@none.invalid:1/chats"),
    "no server listens there": (
        "redis://:hush@127.0.0.1:1",
        "unix:///none.invalid/redis.sock",
        "postgresql://ann:hush@127.0.0.1:1/chats",
    ),
    "it does not answer in TLS": ("rediss://:hush@{}", "postgresql://ann:hush@{}/chats?sslmode=require"),
    "its server refuses": ("redis://:hush@{}", "postgresql://ann:hush@{}/chats?sslmode=disable"),
}
"""Servers that are away, by the cause. An address in braces is that of a server of another kind."""


@pytest.mark.parametrize(("cause", "url"), [(cause, url) for cause, urls in SERVERS.items() for url in urls])
async def test_cause_is_told_and_the_address_only_to_the_owner(cause: str, url: str, tmp_path: Path) -> None:
    async def speak(reader: StreamReader, writer: StreamWriter) -> None:
        await reader.read(8)
        writer.write(b"No." * 9)
        writer.close()

    async with await start_server(speak, "127.0.0.1", 0) as other:
        host = ":".join(map(str, other.sockets[0].getsockname()))
        for is_secret in (False, True):
            async with aclosing(await open_store(url.format(host), folder=tmp_path, is_secret=is_secret)) as store:
                with pytest.raises(StoreUnavailable) as away:
                    await store.list(ALICE)
            said = str(away.value)
            assert said.startswith("Nothing can be kept at the moment: ")
            assert (f"({cause})" in said) or (cause == "its server refuses" and not is_secret)
            assert any(name in said for name in ("127.0.0.1", "none.invalid", "redis.sock")) is not is_secret
            assert "/none" not in said
            assert "hush" not in said


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ('connection to server at "tls.example" failed: FATAL:  password authentication failed', "credentials"),
        ('FATAL:  role "refused" does not exist', "credentials"),
        ('no pg_hba.conf entry for host "10.0.0.1", user "ann", no encryption', "credentials"),
        ("Error 111 connecting to password.example:6379. Connection refused.", "nobody_listens"),
        ('could not translate host name "ssl" to address: Name or service not known', "unknown_host"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate", "untrusted"),
        ("connection timeout expired", "unanswered"),
        ("Connection closed by server.", None),
        ("consuming input failed: SSL connection has been closed unexpectedly", None),
        ("SSL SYSCALL error: EOF detected", None),
        ("SSL error: unexpected eof while reading", None),
        ("terminating connection due to idle-session timeout", None),
        ("canceling statement due to statement timeout", None),
        ("server does not support SSL, but SSL was required", "no_tls"),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)", "no_tls"),
        ("[SSL: SSLV3_ALERT_HANDSHAKE_FAILURE] sslv3 alert handshake failure", "no_tls"),
        ("_ssl.c:989: The handshake operation timed out", "unanswered"),
        ("Connection refused: the password is wrong", "credentials"),
    ],
)
def test_words_of_the_drivers_are_understood(said: str, cause: str | None) -> None:
    assert cause_of(OSError(said)) == cause


WORDS = {
    "Error while reading from /srv/chats/redis.sock : (104,).": "Error while reading from redis.sock : (104,)",
    'connection to server on socket "/run/pg/.s.PGSQL.5432" failed: FATAL:  too many clients\nHINT: x': (
        "FATAL: too many clients"
    ),
    "ERR user_script:7: -cannot write to /srv/chats/dump.rdb.": "cannot write to dump.rdb",
    "\n": "OSError",
}


@pytest.mark.parametrize("said", WORDS)
def test_words_of_a_server_have_no_path(said: str) -> None:
    for reason in (connection_reason, refusal_reason):
        assert reason(OSError(said)) == WORDS[said]
        assert reason(OSError(said), is_secret=True) == "its server refuses"
    assert f"({WORDS[said]})" in str(ledger_error("used", OSError(said)))
    assert str(ledger_error("used", OSError(said), OSError(said))).endswith(f": {WORDS[said]}.")


async def test_other_history_in_the_folder_is_found(tmp_path: Path) -> None:
    for url in ("sqlite", "json"):
        await (await open_store(url, folder=tmp_path)).aclose()
    file, folder = tmp_path / "history.sqlite", tmp_path / "history"
    assert other_histories("sqlite", tmp_path) == [folder]
    assert other_histories("json:history", tmp_path) == [file]
    assert other_histories("memory:", tmp_path) == other_histories("redis://host", tmp_path) == [file, folder]
    assert other_histories("memory:", tmp_path / "empty") == []
