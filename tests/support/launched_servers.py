"""Programs in place of vLLM and llama.cpp, for tests of the launchers. They record their start, and answer."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.settings import ROOT

VLLM = """
import json, os, signal, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

argv = sys.argv[1:]
option = lambda name: argv[argv.index(name) + 1]
if "broken" in argv[1]:
    print("ValueError: No available memory for the cache blocks.", file=sys.stderr)
    sys.exit(1)
if "Fragile" in argv[1] and os.path.exists({log!r}):
    print("ValueError: The second start fails.", file=sys.stderr)
    sys.exit(1)
if "Stubborn" in argv[1]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
# A worker that left the process group, and would be nobody's child once we are gone.
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "fake-engine-core"], start_new_session=True)
print("Loading safetensors checkpoint shards:  50% Completed | 1/2", end="\\r", file=sys.stderr, flush=True)
variables = {{name: value for name, value in os.environ.items() if name.startswith("VLLM_")}}
open({log!r}, "w").write(json.dumps({{"argv": argv, "variables": variables}}))

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.path == "/health" or self.headers["Authorization"] == "Bearer " + os.environ["VLLM_API_KEY"]
        body = json.dumps({{"data": [{{"id": argv[1], "owned_by": "vllm", "max_model_len": 4096}}]}}).encode()
        self.send_response(200 if known else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass

HTTPServer(("127.0.0.1", int(option("--port"))), Handler).serve_forever()
"""

LLAMA = """
import json, sys, threading
from http.server import BaseHTTPRequestHandler, HTTPServer

class Parameters:
    pass

class CommonParams(Parameters):
    def __init__(self):
        self.model, self.cpuparams, self.cpuparams_batch = Parameters(), Parameters(), Parameters()

def plain(value):
    return vars(value) if isinstance(value, Parameters) else sorted(value)

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({{"data": [{{"id": "toy", "owned_by": "llamacpp"}}]}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass

class Server:
    def __init__(self, parameters):
        open({log!r}, "w").write(json.dumps({{"argv": sys.argv[1:], "parameters": vars(parameters)}}, default=plain))
        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.listening_address = f"http://127.0.0.1:{{server.server_port}}"
"""

ELSEWHERE = """
from types import SimpleNamespace

def CommonParams():
    return SimpleNamespace(model=SimpleNamespace(), cpuparams=SimpleNamespace(), cpuparams_batch=SimpleNamespace())

class Server:
    def __init__(self, parameters):
        self.listening_address = {url!r}
"""


@dataclass(frozen=True)
class Started:
    """The file in which a program records how it was started."""

    log: Path

    @property
    def how(self) -> dict[str, Any]:
        """Return its arguments as `argv`, and its `variables` or `parameters`."""
        return json.loads(self.log.read_text())


def write_program(path: Path, text: str) -> None:
    """Write a program in Python, with the first line that pip writes if this Python's path has a space or is long."""
    path.write_text(f"#!/bin/sh\n'''exec' '{sys.executable}' \"$0\" \"$@\"\n' '''\n{text}")
    path.chmod(0o755)


@contextmanager
def vllm(folder: Path, gpu: int = 0) -> Iterator[Started]:
    """Put a fake `vllm` on an otherwise empty PATH, and an `nvidia-smi` that reports a GPU of `gpu` MiB, unless 0."""
    log, programs = folder / "vllm.json", folder / "bin"
    programs.mkdir()
    write_program(programs / "vllm", VLLM.format(log=str(log)))
    if gpu:
        write_program(programs / "nvidia-smi", f"print({gpu})")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        yield Started(log)


@contextmanager
def llama_cpp(folder: Path) -> Iterator[Started]:
    """Let the child process import this program in place of llama.cpp."""
    log, module = folder / "llama.json", folder / "modules" / "xllamacpp.py"
    module.parent.mkdir()
    module.write_text(LLAMA.format(log=str(log)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(module.parent))
        yield Started(log)


def llama_cpp_at(folder: Path, url: str) -> dict[str, str]:
    """Return the environment of an app whose llama.cpp says that it listens at `url`, where a test's server answers."""
    model, modules = folder / "toy.gguf", folder / "modules"
    model.write_bytes(b"GGUF")
    modules.mkdir()
    (modules / "xllamacpp.py").write_text(ELSEWHERE.format(url=url))
    return {"VLLM_BASE_URL": "", "LOCAL_MODEL": str(model), "PYTHONPATH": f"{modules}:{ROOT}"}
