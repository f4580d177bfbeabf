"""A real vLLM server on the CPU for tests: SmolLM2 in the form vLLM reads, `vllm serve` from .venv-vllm, started once.

`make test-vllm` installs what it needs. A test module takes the fixture and the marks:

    from tests import vllm_server
    pytestmark = vllm_server.MARKS
    vllm = vllm_server.vllm
"""

import asyncio
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest

from agent.models.weights import SMOLLM2, fetch
from agent.settings import ROOT
from tests.support.ports import free_port

MODEL = "smollm2-135m"
CONTEXT_TOKENS = 2048
MARKS = [pytest.mark.vllm, pytest.mark.timeout(600)]
"""The first test waits for the server: half a minute on an idle machine, some minutes on a busy one."""

_ENVIRONMENT = ROOT / ".venv-vllm"
_CACHE = ROOT / ".cache"
_START_SECONDS = 480.0


@dataclass(frozen=True, slots=True)
class VllmServer:
    """A running server. `url` ends in /v1. `root` serves paths beside it (/health, /metrics), which need no key."""

    root: str
    key: str = field(repr=False)
    log: Path
    pid: int
    model: str = MODEL
    context_tokens: int = CONTEXT_TOKENS

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    def running_requests(self) -> int:
        """Return the number of requests that the engine processes now, by its own count."""
        return int(self.metric("vllm:num_requests_running"))

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels, or 0 before its first count."""
        text = httpx2.get(f"{self.root}/metrics", trust_env=False).raise_for_status().text
        return sum(float(value) for value in re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.MULTILINE))

    def wait_until_idle(self, seconds: float = 5.0) -> None:
        """Wait until the engine is idle. Raises `TimeoutError`."""
        start = time.monotonic()
        while running := self.running_requests():
            if time.monotonic() - start > seconds:
                raise TimeoutError(f"vLLM still works on {running} requests after {seconds} s")
            time.sleep(0.02)


@pytest.fixture(scope="session")
def vllm(request: pytest.FixtureRequest) -> VllmServer:
    """The one server of this test session. It ends with the session."""
    # Each module that imports a fixture gets a separate one, so the session's stash holds the one server.
    config = request.config
    if _STARTED not in config.stash:
        running = serving()
        config.stash[_STARTED] = running.__enter__()
        config.add_cleanup(lambda: running.__exit__(None, None, None))
    return config.stash[_STARTED]


_STARTED = pytest.StashKey[VllmServer]()


@contextmanager
def serving() -> Iterator[VllmServer]:
    """Start `vllm serve` and yield it once it is healthy. Afterwards all its processes are gone.

    Raises `RuntimeError` with the end of its log if it cannot start.
    """
    if not (_ENVIRONMENT / "bin" / "vllm").exists():
        raise RuntimeError("there is no .venv-vllm: `make test-vllm` sets it up and runs these tests")
    weights, port, key = converted(), free_port(), secrets.token_urlsafe(16)
    log = _CACHE / "vllm-test.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*_with_us(), str(_ENVIRONMENT / "bin" / "vllm"), "serve", str(weights), *_flags(port)],
            env={**os.environ, **_variables(key)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        server = VllmServer(root=f"http://127.0.0.1:{port}", key=key, log=log, pid=process.pid)
        _wait_for(server, process)
        yield server
    finally:
        _end(process)


def converted() -> Path:
    """Return the folder of SmolLM2's weights in vLLM's format, made at the first call (20 s, 260 MB)."""
    folder = _CACHE / "smollm2-hf"
    if folder.exists():
        return folder
    gguf = asyncio.run(fetch(SMOLLM2, _CACHE, report=lambda _have, _all: None))
    # Under another name until complete, so that an interrupted conversion is never served.
    part = folder.with_suffix(f".part{os.getpid()}")
    try:
        done = subprocess.run(
            [str(_ENVIRONMENT / "bin" / "python"), str(ROOT / ".ci" / "gguf_to_hf.py"), str(gguf), str(part)],
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{gguf.name} could not be converted:\n{done.stderr[-2000:]}")
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def _flags(port: int) -> list[str]:
    return [
        *("--host", "127.0.0.1", "--port", str(port), "--served-model-name", MODEL),
        *("--enforce-eager", "--max-model-len", str(CONTEXT_TOKENS), "--dtype", "bfloat16"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--enable-prompt-tokens-details"),
    ]


def _variables(key: str) -> dict[str, str]:
    return {
        "VLLM_API_KEY": key,  # not a flag, because everybody can read a command line
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CACHE_ROOT": str(_CACHE / "vllm"),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def _with_us() -> list[str]:
    """Return a prefix that ends vLLM when the tests are killed, if the system has one. Else it keeps its 3 GB."""
    return ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []


def _wait_for(server: VllmServer, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        with suppress(httpx2.HTTPError):
            if httpx2.get(f"{server.root}/health", trust_env=False, timeout=5).status_code == 200:
                return
        time.sleep(0.2)
    how = "did not get ready" if process.poll() is None else f"ended with status {process.returncode}"
    raise RuntimeError(f"vLLM {how}; the end of its log:\n{server.log.read_text(errors='replace')[-4000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)
    # Its workers are in the same group, and can outlive it.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
