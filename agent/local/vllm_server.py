"""Finds, calls, reads and ends our own `vllm serve`.

As a script, this file is a supervisor between us and vLLM. vLLM does not watch its stdin, so it would outlive us if we
were killed. The supervisor does watch its own, and ends vLLM's whole process tree with itself.
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

_TERMINATE_SECONDS = 8.0  # for vLLM to free the GPU after SIGTERM


def find_vllm(root: Path) -> Path | None:
    """Return the `vllm` program beside this Python, in `root`/.venv-gpu or on the PATH. None if there is none."""
    for folder in (Path(sys.executable).parent, root / ".venv-gpu" / "bin"):
        if (folder / "vllm").is_file():
            return folder / "vllm"
    found = shutil.which("vllm")
    return Path(found) if found else None


def default_model(gpu_memory: int) -> str:
    """Return the Qwen3 checkpoint that a GPU with `gpu_memory` MiB serves well in bfloat16."""
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
    """Return the supervised command line. It never has the key, since everybody can read it: see `environment`.

    `gpu_memory` is in MiB, 0 without a GPU. `reasoning` and `tools` are the names of vLLM's parsers. `media` limits the
    files of each kind in one request; it is empty for a model that reads only text.
    """
    argv = [sys.executable, "-P", __file__, str(vllm), "serve", model, "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--max-model-len", str(_context(model, gpu_memory))]
    argv += ["--max-num-queued-reqs", "64", "--enable-prompt-tokens-details"]
    if reasoning:
        argv += ["--reasoning-parser", reasoning]
    if tools:
        argv += ["--enable-auto-tool-choice", "--tool-call-parser", tools]
    if media:
        # We send bytes only. vLLM must not fetch any URL in a message.
        argv += ["--allowed-media-domains", "media.invalid"]
        argv += ["--limit-mm-per-prompt", json.dumps(dict(media))]
    if not gpu_memory:
        argv += ["--enforce-eager"]
    return argv


def environment(key: str, gpu_memory: int) -> dict[str, str]:
    """Return the environment variables for vLLM, with its key."""
    env = {"VLLM_API_KEY": key, "VLLM_NO_USAGE_STATS": "1", "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0"}
    if not gpu_memory and "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
        env["VLLM_CPU_KVCACHE_SPACE"] = "1"
    return env


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free at this moment. vLLM cannot choose one itself and report it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_STEPS = (  # pattern, name of a sentence, progress; from..to if the pattern has a percentage
    (r"Application startup complete", "vllm_ready", 1.0, 1.0),
    (r"Capturing CUDA graphs[^:]{0,200}:\s+(\d+)%", "vllm_graphs", 0.8, 0.98),
    (r"[Gg]raph capturing finished", "vllm_warming", 0.98, 0.98),
    (r"GPU KV cache size|CPU KV cache size|Available KV cache memory", "vllm_cache", 0.75, 0.75),
    # Not the warning before the start of the engine that torch.compile is turned off.
    (r"for vLLM's torch\.compile|Dynamo bytecode transform|Compiling a graph", "vllm_compiling", 0.65, 0.65),
    (r"Model loading took", "vllm_loaded", 0.6, 0.6),
    (r"Loading \w{1,50} checkpoint shards:\s+(\d+)%", "vllm_loading", 0.2, 0.6),
    (r"Starting to load model|Loading weights", "vllm_loading", 0.2, 0.2),
    (r"[Dd]ownloading|Fetching \d+ files", "vllm_downloading", 0.15, 0.15),
    (r"Initializing .{0,200}engine", "vllm_engine", 0.12, 0.12),
    (r"Resolved architecture", "vllm_description", 0.08, 0.08),
    (r"vLLM API server version", "vllm_starting", 0.05, 0.05),
)


def progress(line: str) -> tuple[str, float] | None:
    """Return the step that a line of vLLM's log reports: a sentence's name and a fraction (0..1). Else None."""
    for pattern, key, low, high in _STEPS:
        if found := re.search(pattern, line):
            return key, low + (high - low) * int(found[1]) / 100 if found.re.groups else low
    return None


def _context(model: str, gpu_memory: int) -> int:
    """Return the context length that is worth its memory, at most the length that the checkpoint supports."""
    wanted = 32_768 if gpu_memory >= 22_000 else 8_192 if gpu_memory else 4_096
    with contextlib.suppress(OSError, ValueError):
        config: dict[str, Any] = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
        limit = (config.get("text_config") or config).get("max_position_embeddings")
        return min(wanted, int(limit)) if limit else wanted
    return wanted


def _supervise(argv: list[str]) -> NoReturn:
    """Run `argv` until it ends, our stdin closes, or we are terminated. Then end all its processes."""
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    if libc:
        libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphaned workers become our children

    def with_us() -> None:
        if libc:
            libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: for the case that we are killed ourselves

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
    # A signal is encoded as a shell does it. The parent reads vLLM's log for the reason.
    os._exit(code if code >= 0 else 128 - code)


def _end(server: subprocess.Popen[bytes]) -> NoReturn:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGTERM)
    until = time.monotonic() + _TERMINATE_SECONDS
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
