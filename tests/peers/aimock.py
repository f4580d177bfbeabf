"""Runs aimock as a process on loopback. It plays its fixtures and keeps its own reading of each request."""

import json
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

from tests.peers.install import MODULES, node

PROGRAM = MODULES / "@copilotkit" / "aimock" / "dist" / "cli.js"
STARTS_WITHIN = 20.0
ENDS_WITHIN = 3.0


class Aimock:
    """A running aimock. Its journal has a line for each request, translated to the terms of Chat Completions."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._open = build_opener(ProxyHandler({})).open  # ignore the environment's proxies

    def journal(self) -> list[dict[str, Any]]:
        """Return the requests since `forget`."""
        with self._open(f"http://127.0.0.1:{self.port}/__aimock/journal", timeout=5) as answer:
            return json.load(answer)

    def forget(self) -> None:
        """Empty the journal."""
        url = f"http://127.0.0.1:{self.port}/__aimock/reset/journal"
        with self._open(Request(url, method="POST"), timeout=5) as answer:
            answer.read()


@contextmanager
def aimock(fixtures: Sequence[Mapping[str, Any]]) -> Iterator[Aimock]:
    """Run aimock with these fixtures on a free port of loopback. It refuses a request that matches none of them."""
    assert PROGRAM.is_file(), "aimock is not installed: `make test` does that"
    with TemporaryDirectory() as folder:
        said, log = Path(folder) / "fixtures.json", Path(folder) / "log"
        said.write_text(json.dumps({"fixtures": list(fixtures)}))
        arguments = ["--port", "0", "--fixtures", said, "--chunk-size", "6", "--strict", "--validate-on-load"]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [node(), PROGRAM, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=folder
            )
        try:
            yield Aimock(_port(process, log))
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):  # it waits for keep-alive connections
                process.wait(ENDS_WITHIN)
            process.kill()
            process.wait()


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    until = time.monotonic() + STARTS_WITHIN
    while time.monotonic() < until and process.poll() is None:
        if found := re.search(r"listening on http://[\d.]+:(\d+)", log.read_text()):
            return int(found[1])
        time.sleep(0.02)
    raise RuntimeError("aimock does not start:\n" + log.read_text()[-3000:])
