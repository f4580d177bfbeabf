"""How our own `vllm serve` is found, called, read, and ended.

Run as a script it is the supervisor that stands between us and vLLM: vLLM does not watch its stdin, so it would outlive
us if we were killed. The supervisor does watch, and takes vLLM's whole process tree down with itself.
"""

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

_FIRM = 8.0  # seconds vLLM has to free the GPU after SIGTERM


def find_vllm(root: Path) -> Path | None:
    """The `vllm` program: beside this Python, in `root`/.venv-gpu, or on the PATH. None where there is none."""
    for folder in (Path(sys.executable).parent, root / ".venv-gpu" / "bin"):
        if (folder / "vllm").is_file():
            return folder / "vllm"
    found = shutil.which("vllm")
    return Path(found) if found else None


def default_model(gpu_memory: int) -> str:
    """The Qwen3 checkpoint that a GPU of so many MiB serves well in bfloat16."""
    for needed, name in ((22_000, "Qwen/Qwen3-8B"), (14_000, "Qwen/Qwen3-4B"), (7_000, "Qwen/Qwen3-1.7B")):
        if gpu_memory >= needed:
            return name
    return "Qwen/Qwen3-0.6B"


def command(
    vllm: Path,
    model: str,
    port: int,
    *,
    gpu_memory: int,
    reasoning: str | None,
    tools: str | None,
    media: Mapping[str, int],
) -> list[str]:
    """The supervised command line. The key is not in it (anybody may read that): it goes in as VLLM_API_KEY.

    `gpu_memory` is in MiB, 0 without a GPU; `reasoning` and `tools` are the names of vLLM's parsers; `media` is how
    many of each kind one request may hold, empty for a model that reads only text.
    """
    argv = [sys.executable, "-P", __file__, str(vllm), "serve", model, "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--max-model-len", str(_context(model, gpu_memory))]
    argv += ["--max-num-queued-reqs", "64", "--enable-prompt-tokens-details"]
    if reasoning:
        argv += ["--reasoning-parser", reasoning]
    if tools:
        argv += ["--enable-auto-tool-choice", "--tool-call-parser", tools]
    if media:
        # We send bytes only; whatever else is in a message, vLLM must not fetch it.
        argv += ["--allowed-media-domains", "media.invalid"]
        argv += ["--limit-mm-per-prompt", json.dumps(dict(media))]
    if not gpu_memory:
        argv += ["--enforce-eager"]
    return argv


def environment(key: str, gpu_memory: int) -> dict[str, str]:
    """What vLLM is told besides."""
    env = {"VLLM_API_KEY": key, "VLLM_NO_USAGE_STATS": "1", "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0"}
    if not gpu_memory and "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
        env["VLLM_CPU_KVCACHE_SPACE"] = "1"
    return env


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses at this moment; vLLM cannot choose one itself and tell us."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_STEPS = (  # pattern, name of a sentence, and how far that is; from..to where the pattern has a percentage
    (r"Application startup complete", "vllm_ready", 1.0, 1.0),
    (r"Capturing CUDA graphs[^:]{0,200}:\s+(\d+)%", "vllm_graphs", 0.8, 0.98),
    (r"[Gg]raph capturing finished", "vllm_warming", 0.98, 0.98),
    (r"GPU KV cache size|CPU KV cache size|Available KV cache memory", "vllm_cache", 0.75, 0.75),
    (r"torch\.compile|Dynamo bytecode transform|Compiling a graph", "vllm_compiling", 0.65, 0.65),
    (r"Model loading took", "vllm_loaded", 0.6, 0.6),
    (r"Loading \w{1,50} checkpoint shards:\s+(\d+)%", "vllm_loading", 0.2, 0.6),
    (r"Starting to load model|Loading weights", "vllm_loading", 0.2, 0.2),
    (r"[Dd]ownloading|Fetching \d+ files", "vllm_downloading", 0.15, 0.15),
    (r"Initializing .{0,200}engine", "vllm_engine", 0.12, 0.12),
    (r"Resolved architecture", "vllm_description", 0.08, 0.08),
    (r"vLLM API server version", "vllm_starting", 0.05, 0.05),
)


def progress(line: str) -> tuple[str, float] | None:
    """What a line of vLLM's log says of its start: a sentence's name, how far that is (0..1). None for other lines."""
    for pattern, key, low, high in _STEPS:
        if found := re.search(pattern, line):
            return key, low + (high - low) * int(found[1]) / 100 if found.re.groups else low
    return None


def _context(model: str, gpu_memory: int) -> int:
    """The longest conversation worth room in the cache, never more than the checkpoint was made for."""
    wanted = 32_768 if gpu_memory >= 22_000 else 8_192 if gpu_memory else 4_096
    with contextlib.suppress(OSError, ValueError):
        config: dict[str, Any] = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
        limit = (config.get("text_config") or config).get("max_position_embeddings")
        return min(wanted, int(limit)) if limit else wanted
    return wanted


def _supervise(argv: list[str]) -> NoReturn:
    """Run `argv` until it ends, our stdin closes, or we are terminated; then leave nothing of it behind."""
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    if libc:
        libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: workers that lose their parent become our children

    def with_us() -> None:
        if libc:
            libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG, should we be killed ourselves

    server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=with_us)

    def terminated(_number: int, _frame: FrameType | None) -> None:
        _end(server)

    signal.signal(signal.SIGTERM, terminated)

    def watch() -> None:
        while os.read(0, 4096):
            pass
        _end(server)

    threading.Thread(target=watch, daemon=True).start()
    code = server.wait()
    _kill(server)
    # A shell's way of telling a signal; the parent reads vLLM's log for the reason.
    os._exit(code if code >= 0 else 128 - code)


def _end(server: subprocess.Popen[bytes]) -> NoReturn:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGTERM)
    until = time.monotonic() + _FIRM
    while server.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    _kill(server)
    os._exit(0)


def _kill(server: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(server.pid, signal.SIGKILL)
    while adopted := _children():
        for pid in adopted:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _children() -> list[int]:
    with contextlib.suppress(OSError):
        lists = Path("/proc/self/task").glob("*/children")
        return [int(pid) for each in lists for pid in each.read_text().split()]
    return []


if __name__ == "__main__":
    _supervise(sys.argv[1:])
