"""The child process that serves one GGUF file through llama.cpp. It imports nothing of the app.

    python -P llama_server.py MODEL --alias NAME [--slots 4] [--context 4096] [--port 0] [--kv-bytes N]

The environment variable LOCAL_API_KEY has the key that callers must send. The process writes one JSON line to stdout:
`{"port": int, "slots": int}` when the server listens (poll /health until it answers 200), or `{"error": name, "values":
{...}}` for one of the errors in `launch.py`, with an exit status other than 0. The process ends when its stdin
closes, so it cannot outlive its parent, however the parent ends.
"""

import argparse
import contextlib
import ctypes
import importlib
import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

# The memory of llama.cpp besides the weights and the attention cache (measured: 120-150 MB on small models).
_OVERHEAD = 150 * 2**20


def main() -> None:
    """Serve until stdin closes."""
    # llama.cpp is C++ and can print anything to file descriptor 1; only our own line must reach the parent.
    stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    arguments = _arguments()

    def fail(error: str, **values: object) -> NoReturn:
        print(json.dumps({"error": error, "values": values}), file=stdout, flush=True)
        sys.exit(3)  # not os._exit: llama.cpp's log, which has the reason, is written by a thread until a normal end

    parent = threading.Thread(target=_until_stdin_closes, daemon=True)
    parent.start()
    key = os.environ.pop("LOCAL_API_KEY", "")
    if not key:
        sys.exit("LOCAL_API_KEY is not set.")
    model = Path(arguments.model)
    try:
        with model.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        fail("not_readable", file=model.name, reason=error.strerror)
    if magic != b"GGUF":
        fail("no_gguf", file=model.name)
    slots = _slots_that_fit(model, arguments.slots, arguments.context * arguments.kv_bytes)
    if slots == 0:
        size, free = model.stat().st_size + _OVERHEAD, available_memory() or 0
        fail("short_memory", file=model.name, size=size // 2**20, free=free // 2**20)
    # libgomp reads this when it is loaded. By default it spins so long at each barrier that one busy process on the
    # same cores (such as the web page) cuts the speed to a fifth. Without any spinning the speed is halved.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    try:
        llama: Any = importlib.import_module("xllamacpp")
    except ImportError as error:
        if not has_openmp():
            fail("no_openmp")
        fail("not_loaded", reason=str(error))
    try:
        server = llama.Server(_parameters(llama.CommonParams(), arguments, slots, key))
    except (RuntimeError, ValueError, TypeError) as error:
        # llama.cpp writes the reason to stderr; the parent reads it there.
        fail("not_served", file=model.name, reason=str(error))
    port = int(server.listening_address.rsplit(":", 1)[-1].strip("/"))
    print(json.dumps({"port": port, "slots": slots}), file=stdout, flush=True)
    parent.join()


def has_openmp() -> bool:
    """Return False if this is Linux, and its libgomp cannot be loaded, which llama.cpp needs there."""
    try:
        return sys.platform != "linux" or bool(ctypes.CDLL("libgomp.so.1"))
    except OSError:
        return False


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--alias", default="local")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--context", type=int, default=4096, help="tokens per slot")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--kv-bytes", type=int, default=131_072, help="attention cache per token")
    return parser.parse_args()


def _until_stdin_closes() -> NoReturn:
    while os.read(0, 4096):
        pass
    # Not sys.exit: its clean-up waits for answers that are still being generated.
    os._exit(0)


def _parameters(params: Any, arguments: argparse.Namespace, slots: int, key: str) -> Any:
    """Return llama.cpp's parameters for a private server: loopback only, with a key, closed to all web pages."""
    params.model.path = arguments.model
    params.model_alias = {arguments.alias}
    params.hostnames = ["127.0.0.1"]
    params.port = arguments.port if _is_free(arguments.port) else 0
    params.api_keys = [key]
    params.cors_origins = ""  # by default, llama.cpp lets any web page read its answers
    params.cors_credentials = False
    params.ui = False
    params.offline = True
    params.verbosity = 1
    params.fit_params = False  # it is for GPUs, and loads a broken file twice
    params.n_parallel = slots
    params.n_ctx = slots * arguments.context
    params.cache_ram_mib = 256
    cores = usable_cores()
    # Generation leaves one core to the page: ggml's threads wait for each other, so a late one delays all.
    params.cpuparams.n_threads = max(1, cores - 1)
    params.cpuparams_batch.n_threads = cores
    return params


def _slots_that_fit(model: Path, wanted: int, bytes_per_slot: int) -> int:
    """Return how many conversations fit into memory at once, at most `wanted`; 0 if not even the model fits."""
    free = available_memory()
    if free is None:
        return wanted
    rest = free - model.stat().st_size - _OVERHEAD
    return max(0, min(wanted, rest // max(1, bytes_per_slot)))


def _is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        return True
    return False


def usable_cores() -> int:
    """Return the cores that this process can use: the affinity mask, cut by the container's quota, which it ignores."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 2
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, round(int(quota) / int(period))))
    return cores


def available_memory() -> int | None:
    """Return the bytes available without swapping, in this machine and its container; None if they are not known."""
    free: list[int] = []
    with contextlib.suppress(OSError, ValueError, KeyError):
        free.append(_table("/proc/meminfo")["MemAvailable:"] * 1024)
    with contextlib.suppress(OSError, ValueError, KeyError):
        group = Path("/sys/fs/cgroup")
        used = int((group / "memory.current").read_text()) - _table(str(group / "memory.stat"))["inactive_file"]
        free.append(int((group / "memory.max").read_text()) - used)
    return max(0, min(free)) if free else None


def _table(path: str) -> dict[str, int]:
    return {words[0]: int(words[1]) for words in (line.split() for line in Path(path).read_text().splitlines())}


if __name__ == "__main__":
    main()
