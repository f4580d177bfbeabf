"""Forks apps from one process that has imported the app, because the imports are most of the work of a start.

A forked app runs the same `app.main()` in its own process, with its own environment. Only what the imports themselves
read from the environment is that of the first process, so `can_start` refuses variables that they can read. Other
programs can be forked, too, such as the chat in the terminal.

Run as a program, this is that process. Its argument is the module of the app. Each line of its stdin asks for an app;
lines on its stdout name the process of each app and its end.
"""

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
READ_BY_IMPORTS = ("GRADIO_", "HF_", "HUGGINGFACE_", "LOG_", "PYTHON", "SPACE_", "SSL_", "SYSTEM")
"""Prefixes of variables that some package may read while it is imported."""
READ_LATER = ("LOG_LEVEL", "GRADIO_SERVER_NAME", "GRADIO_SERVER_PORT", "GRADIO_TEMP_DIR", "PYTHONPATH")
"""Variables of these that only the app reads, once it starts, or programs that it starts."""

IMPORTED_LATER = (
    *("agent.providers.chat_completions", "agent.providers.openai_responses", "pydantic_ai.models.openai"),
    *("agent.providers.anthropic_messages", "agent.providers.google_generate_content"),
)
"""The modules that an app imports some seconds after its start, for the first answer of each model."""


@dataclass
class Forked:
    """A process of an app, with what the tests use of `subprocess.Popen`."""

    pid: int
    returncode: int | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    def poll(self) -> int | None:
        """Return the exit status, or None while the app runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status."""
        if not self.ended.wait(timeout):
            raise subprocess.TimeoutExpired("app.py", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the app has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End the app at once."""
        self.send_signal(signal.SIGKILL)


class Imported:
    """The process that has imported the app, with the environment `env`."""

    def __init__(self, process: subprocess.Popen[str], env: Mapping[str, str]) -> None:
        self._process, self.env = process, env
        self._apps: dict[int, Forked] = {}
        self._lock = threading.Lock()
        self._next: list[Forked] = []
        self._forked = threading.Semaphore(0)
        threading.Thread(target=self._read, daemon=True).start()

    def can_start(self, env: Mapping[str, str]) -> bool:
        """Return True if the imports of an app with this environment would be the same."""
        names = {name for name in env.keys() | self.env.keys() if env.get(name) != self.env.get(name)}
        return not [name for name in names - {*READ_LATER} if name.startswith(READ_BY_IMPORTS)]

    def start(
        self,
        env: Mapping[str, str],
        files: Sequence[Path | str],
        argv: Sequence[str] = (),
        *,
        folder: Path = ROOT,
        own_session: bool = False,
    ) -> Forked:
        """Start an app in a folder, with the files for its stdin, stdout and stderr, to which its output is appended.

        In its own session, a terminal that is its stdin is its controlling terminal.
        """
        assert self._process.stdin
        asked = {"env": dict(env), "files": [*map(str, files)], "argv": [*argv], "folder": str(folder)}
        with self._lock:
            print(json.dumps(asked | {"own_session": own_session}), file=self._process.stdin, flush=True)
            # The imports take seconds, and minutes on a machine that does much else.
            if not self._forked.acquire(timeout=240) or not self._next:
                raise RuntimeError("the process with the imports does not answer")
            return self._next.pop()

    def _read(self) -> None:
        assert self._process.stdout
        with self._process.stdout as lines:
            for line in lines:
                said = json.loads(line)
                if "status" in said:
                    app = self._apps.pop(said["pid"])
                    app.returncode = said["status"]
                    app.ended.set()
                else:
                    self._apps[said["pid"]] = app = Forked(said["pid"])
                    self._next.append(app)
                    self._forked.release()
        self._forked.release()  # it has ended


@contextmanager
def imported(module: str = "app") -> Iterator[Imported]:
    """Run such a process, which has imported this module and `IMPORTED_LATER`, until the block ends."""
    command, env = [sys.executable, "-m", "tests.support.forked_apps", module], dict(os.environ)
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Imported(process, env)
    finally:
        assert process.stdin
        process.stdin.close()
        process.wait(60)


def main() -> int:
    """Import the app, and fork for each line of stdin until it ends. Return the exit status, also of each app."""
    before = dict(os.environ)
    app, *_ = [import_module(name) for name in (sys.argv[1], *IMPORTED_LATER)]  # sets the signal handlers, too
    set_by_imports = {name: value for name, value in os.environ.items() if before.get(name) != value}
    assert threading.active_count() == 1, "a fork would lose a thread"
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    leave = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, which then end their apps
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    rest = b""
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _report_ended(said)
        if 0 in ready:
            if not (read := os.read(0, 1 << 20)):
                return 0
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                asked = json.loads(line)
                files = [os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOCTTY) for file in asked["files"]]
                if (pid := os.fork()) == 0:
                    signal.signal(signal.SIGINT, leave)
                    _become_app(asked | {"env": set_by_imports | asked["env"]}, files, (said.fileno(), woken, wake))
                    return app.main()
                for file in files:
                    os.close(file)
                print(json.dumps({"pid": pid}), file=said, flush=True)


def _report_ended(said: IO[str]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        print(json.dumps({"pid": pid, "status": os.waitstatus_to_exitcode(status)}), file=said, flush=True)


def _become_app(asked: Mapping[str, Any], files: Sequence[int], close: Sequence[int]) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in (*files, *close):
        os.close(file)
    if asked["own_session"]:
        os.setsid()
        if os.isatty(0):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # As in a new process: what these are is read from the files when they are opened.
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115 - they stay open
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(asked["folder"])
    sys.argv[1:] = asked["argv"]
    os.environ.clear()
    os.environ.update(asked["env"])


if __name__ == "__main__":
    sys.exit(main())
