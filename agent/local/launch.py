"""Starts a local model server, llama.cpp or vLLM: from the weights to an endpoint that answers."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from agent.errors import LocalModelError, ProviderError
from agent.i18n.text import N_, LocalizedText, _
from agent.local.process import ServerProcess, not_answered, reason
from agent.local.vllm_server import command, environment, free_port, progress
from agent.models.catalog import ModelSpec
from agent.models.families import Family, family
from agent.providers.connection import Endpoint
from agent.providers.discovery import discover

_LLAMA_SERVER = Path(__file__).with_name("llama_server.py")
_LOADING_SECONDS = 600.0  # a big file on a slow disk
_VLLM_LOADING_SECONDS = 3600.0  # it may download tens of gigabytes first

Launched = tuple[ServerProcess, Endpoint, tuple[ModelSpec, ...]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A server to keep running. `rank` 0 is the better one, 1 its small stand-in. `launch` takes a key and a port."""

    rank: int
    label: str
    key: str
    launch: Callable[[str, int], Awaitable[Launched]]
    describe: Callable[[ModelSpec], ModelSpec]


async def launch_llama(
    gguf: Path, *, name: str, context: int, kv_bytes: int | None, key: str, port: int, answers: int = 4
) -> Launched:
    """Serve `gguf` under `name`, with `context` tokens for each conversation. `kv_bytes` is per token, None if unknown.

    The server writes up to `answers` at once, or as many as fit into memory. `port` 0 means any; if a port is taken,
    the server uses another one. Raises `LocalModelError` with the reason.
    """
    argv = [sys.executable, "-P", str(_LLAMA_SERVER), str(gguf), "--alias", name, "--context", str(context)]
    argv += ["--port", str(port), "--slots", str(answers), *(["--kv-bytes", str(kv_bytes)] if kv_bytes else [])]
    announced: asyncio.Future[dict[str, object]] = asyncio.get_running_loop().create_future()

    def read(line: str) -> None:
        with contextlib.suppress(ValueError):
            if line.startswith("{") and not announced.done():
                announced.set_result(json.loads(line))

    child = await ServerProcess.spawn(argv, name="llama.cpp", env={"LOCAL_API_KEY": key}, on_line=read)
    try:
        announcement = await _first_announcement(announced, child)
        if "port" not in announcement:
            ended = asyncio.create_task(child.wait())
            await asyncio.wait({ended}, timeout=1)  # for the rest of its log
            raise _why_llama_failed(announcement, child.tail)
        base = f"http://127.0.0.1:{announcement['port']}"
        await child.wait_until_healthy(f"{base}/health", seconds=_LOADING_SECONDS)
        endpoint = Endpoint(f"{base}/v1", key, slots=int(str(announcement["slots"])))
        return child, endpoint, await _specs(endpoint)
    except BaseException:
        await child.aclose()
        raise


async def launch_vllm(
    vllm: Path, model: str, *, gpu_memory: int, key: str, port: int, report: Callable[[str, float], None]
) -> Launched:
    """Run `vllm serve model`. `report` gets the progress from its log: a text and a fraction (0..1).

    Raises `LocalModelError` with vLLM's own reason.
    """
    port = port or free_port()
    known = family(model)
    argv = command(
        vllm,
        model,
        port,
        gpu_memory=gpu_memory,
        reasoning=known.reasoning_parser,
        tools=known.tool_parser,
        media=_media(known),
    )

    def read(line: str) -> None:
        if step := progress(line):
            name, done = step
            report(VLLM_STEPS[name], done)

    child = await ServerProcess.spawn(argv, name="vLLM", env=environment(key, gpu_memory), on_line=read, grace=10.0)
    try:
        base = f"http://127.0.0.1:{port}"
        await child.wait_until_healthy(f"{base}/health", seconds=_VLLM_LOADING_SECONDS)
        endpoint = Endpoint(f"{base}/v1", key)
        return child, endpoint, await _specs(endpoint)
    except BaseException:
        await child.aclose()
        raise


async def gpu_memory() -> int:
    """Return the MiB of memory of the largest NVIDIA GPU; 0 if there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    with contextlib.suppress(OSError, ValueError, TimeoutError):
        process = await asyncio.create_subprocess_exec(
            program,
            "--query-gpu=memory.total",
            "--format=csv,noheader,nounits",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), 5)
        finally:
            if process.returncode is None:
                process.kill()
        return max((int(line) for line in output.decode().split()), default=0)
    return 0


async def _first_announcement(announced: asyncio.Future[dict[str, object]], child: ServerProcess) -> dict[str, object]:
    """Return the child's first announcement. Raises `LocalModelError` if it ends or is silent for too long."""
    ended = asyncio.create_task(child.wait())
    try:
        await asyncio.wait({announced, ended}, timeout=_LOADING_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if announced.done():
            return announced.result()
        raise ended.result() if ended.done() else not_answered("llama.cpp", _LOADING_SECONDS)
    finally:
        ended.cancel()


def _why_llama_failed(announcement: Mapping[str, object], log: tuple[str, ...]) -> LocalModelError:
    """Return the child's error, with the reason that llama.cpp writes only to its log."""
    key, values = str(announcement.get("error")), dict(cast(Mapping[str, str], announcement.get("values") or {}))
    if key == "not_served":
        causes = [found[1] for line in log if (found := re.search(r"error loading model: (.+)", line))]
        values["reason"] = causes[0] if causes else reason(log) or values["reason"]
    return LocalModelError(LocalizedText(_LLAMA_ERRORS[key], values))


VLLM_STEPS = {
    "vllm_starting": _("starting"),
    "vllm_description": _("reading the model's description"),
    "vllm_engine": _("starting the engine"),
    "vllm_downloading": _("downloading the weights"),
    "vllm_loading": _("loading the weights"),
    "vllm_loaded": _("weights are loaded"),
    "vllm_compiling": _("compiling"),
    "vllm_cache": _("sizing the cache"),
    "vllm_graphs": _("capturing CUDA graphs"),
    "vllm_warming": _("warming up"),
    "vllm_ready": _("ready"),
}
"""The texts of the steps that vllm_server.py reports, by name."""
_LLAMA_ERRORS = {
    "no_openmp": N_("llama.cpp needs OpenMP: install the system package libgomp1 (apt install libgomp1)."),
    "not_installed": N_('llama.cpp is not installed: pip install ".[local]" (in the folder of Switchboard)'),
    "not_loaded": N_("llama.cpp cannot be loaded: {reason}"),
    "not_served": N_("llama.cpp cannot serve {file}: {reason}."),
    "no_gguf": N_("{file} is not a GGUF file."),
    "not_readable": N_("{file} cannot be read: {reason}."),
    "short_memory": N_("{file} needs about {size} MB of memory and more for the conversation; {free} MB are free."),
}
"""The errors that llama_server.py reports, by name."""


def check_llama() -> None:
    """Raise `LocalModelError` if llama.cpp is not installed, as it is an extra. Call it before weights are fetched."""
    if find_spec("xllamacpp") is None:
        raise LocalModelError(LocalizedText(_LLAMA_ERRORS["not_installed"], {}))


def _media(known: Family) -> dict[str, int]:
    if not (known.image or known.audio):
        return {}
    # vLLM reserves memory for each of them.
    pictures = {"image": 8} if known.image else {}
    return {"video": int(known.video), **pictures, **({"audio": 2} if known.audio else {})}


async def _specs(endpoint: Endpoint) -> tuple[ModelSpec, ...]:
    try:
        return await discover(endpoint)
    except ProviderError as error:
        raise LocalModelError(error.text) from error
