"""The app as a process, and a wait for what it changes."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.forked_apps import Forked, Imported
from tests.support.live_folders import files_with
from tests.support.ports import free_port
from tests.support.scripted_server import Running

ROOT = Path(__file__).resolve().parent.parent.parent
GUARD_S = 60.0
"""The seconds after which a test says that something never came. No test measures how soon it came."""

CONFIG = """
[agent]
run_seconds = 60
tools = ["agent.tools.builtin:calculate", "tests.support.slow_tools:nap", "tests.support.slow_tools:block"]
"""


ADDRESS = re.compile(r"^The page is at http://\S+:(\d+)$", re.MULTILINE)
"""The line in which the app says the address that it has taken."""


def becomes(wanted: object, read: Callable[[], object], seconds: float = GUARD_S) -> None:
    """Read until the value is `wanted`, for up to `seconds`, because the page updates a moment later."""
    end = time.monotonic() + seconds
    while (found := read()) != wanted:
        assert time.monotonic() < end, f"{found!r} is not {wanted!r}"
        time.sleep(0.05)


@dataclass
class App:
    """The app as a process on loopback. `stop` ends it, and `start` starts it again with the same data and port."""

    folder: Path
    env: dict[str, str]
    port: int
    """0 until the first start, if the app chooses."""
    prefix: tuple[str, ...] = ()
    """A command that runs the app, for example with limits."""
    imported: Imported | None = None
    """A process to fork from."""
    process: subprocess.Popen[bytes] | Forked | None = field(default=None)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """All output of the app so far."""
        return (self.folder / "app.log").read_text(errors="replace")

    def files_with(self, text: str) -> list[Path]:
        """Return the app's files that contain the text."""
        return files_with(self.folder, text.encode())

    def start(self, seconds: float = 240.0) -> "App":
        """Start the app and return when it answers. Raises `RuntimeError` when it has ended, or after `seconds`."""
        path = self.folder / "app.log"
        path.touch()
        if self.imported and not self.prefix and self.imported.can_start(self.env):
            self.process = self.imported.start(self.env, (os.devnull, path, path))
        else:
            with path.open("ab") as log:
                command = [*self.prefix, sys.executable, "app.py"]
                self.process = subprocess.Popen(
                    command, cwd=ROOT, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.process.poll() is None:
            if not self.port and (said := ADDRESS.search(self.log)):
                self.env["GRADIO_SERVER_PORT"], self.port = said[1], int(said[1])
            if self.port:
                with suppress(OSError), urlopen(self.url + "/healthz", timeout=5):
                    return self
            time.sleep(0.05)
        raise RuntimeError("the app does not answer:\n" + self.log[-3000:])

    def stop(self, how: int = signal.SIGTERM) -> int:
        """Send a signal, wait for the end and return the exit status."""
        if self.process is None:
            return 0
        self.process.send_signal(how)
        try:
            return self.process.wait(GUARD_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.process = None


@contextmanager
def apps(
    folders: pytest.TempPathFactory, model_server: Running, imported_app: Imported
) -> Generator[Callable[..., App]]:
    """Start apps with a data folder each and the scripted server: `start(config, NAME=value)` adds variables."""
    started: list[App] = []

    def start(config: str = CONFIG, *, prefix: tuple[str, ...] = (), **env: str) -> App:
        folder = folders.mktemp("app")
        (folder / "app.toml").write_text(config)
        # Not what a test has left in the environment of this process, because no app could be forked then.
        inherited = {name: value for name, value in imported_app.env.items() if name not in ("MODEL", "LOCAL_MODEL")}
        given = {
            "VLLM_BASE_URL": model_server.base_url,
            # On a Space, the app says the Space's address instead of its own.
            "GRADIO_SERVER_PORT": str(free_port()) if "SPACE_HOST" in env else "0",
            "SWITCHBOARD_DATA": str(folder / "data"),
            "SWITCHBOARD_CONFIG": str(folder / "app.toml"),
            "GRADIO_TEMP_DIR": str(folder / "tmp"),
            "PYTHONPATH": str(ROOT),
            **env,
        }
        app = App(folder, {**inherited, **given}, int(given["GRADIO_SERVER_PORT"]), prefix, imported_app)
        started.append(app)
        return app.start()

    try:
        yield start
    finally:
        for app in started:
            with suppress(subprocess.TimeoutExpired):
                app.stop()
