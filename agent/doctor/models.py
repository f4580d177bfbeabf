"""Checks of the model that would answer: the named server, llama.cpp and its weights, and keys of hosted providers."""

import asyncio
import os
import sys
from collections.abc import Mapping

import httpx2

from agent.agent import Agent
from agent.conformance import (
    CALL,
    CLOCK,
    REQUEST_SECONDS,
    THINK,
    Answer,
    Finding,
    ask,
    client_of,
    judge,
    without_reasoning,
)
from agent.doctor.check import Check, fault, ok, warning
from agent.errors import AgentError, ProviderError
from agent.limits import Limits
from agent.local.llama_server import available_memory, has_openmp
from agent.models.catalog import ModelSpec, ProviderSpec
from agent.models.catalog import load_catalog as catalog
from agent.models.families import family
from agent.models.weights import BETTER, SMOLLM2, Weights, find, hub_answers
from agent.providers.connection import Endpoint, connect, default_endpoint
from agent.providers.discovery import discover
from agent.runtime.arguments import embedder_of
from agent.settings import LocalSettings

OLDEST_VLLM = (0, 32)
"""The oldest version of vLLM that this program is tested with."""
OVERHEAD_BYTES = 150 * 10**6
"""Memory of the server beside the weights and the conversation."""
FIXES = {
    "connection": "Start it, or set VLLM_BASE_URL to where it is.",
    "key": "Set VLLM_API_KEY to the key that the server was started with.",
    "malformed": "Set VLLM_BASE_URL to the address of an OpenAI-compatible server, ending in /v1.",
}


async def server(local: LocalSettings) -> list[Check]:
    """Check the server at VLLM_BASE_URL: reachable, new enough, and started with the flags that its model needs."""
    if local.vllm_base_url is None:
        return [ok("server", "VLLM_BASE_URL is not set: a model of this machine answers, or a hosted one")]
    endpoint = Endpoint(local.vllm_base_url, local.vllm_api_key)
    try:
        spec, *others = await discover(endpoint)
    except ProviderError as error:
        return [fault("server", str(error), FIXES.get(error.kind, "Look into that server's log."))]
    more = f" and {len(others)} more" if others else ""
    found = [ok("server", f"it serves {spec.name}{more}")]
    answers: dict[str, Answer] = {}
    async with client_of(endpoint) as client:
        found += await _version(client, endpoint)
        if spec.tools == "native":
            answers["call"] = await ask(
                client, endpoint.base_url, spec.name, CALL, tools=[CLOCK], tool_choice="auto", **without_reasoning(spec)
            )
        answers["think"] = await ask(client, endpoint.base_url, spec.name, THINK)
    laws = judge(answers)
    return [*found, _tools(spec, answers.get("call"), laws), _reasoning(spec, answers["think"], laws), _streams(laws)]


async def _version(client: httpx2.AsyncClient, endpoint: Endpoint) -> list[Check]:
    try:
        reported = (await client.get(endpoint.base_url.removesuffix("/v1") + "/version")).json()["version"]
        parts = tuple(int(part) for part in str(reported).split("+")[0].split(".")[:2])
    except (httpx2.HTTPError, ValueError, KeyError, TypeError):
        return [ok("version", "it does not say its version, so it is not vLLM")]
    if parts < OLDEST_VLLM:
        oldest = ".".join(map(str, OLDEST_VLLM))
        return [
            warning(
                "version",
                f"vLLM {reported} is older than {oldest}, the oldest that this is tested with",
                "Update vLLM on that machine.",
            )
        ]
    return [ok("version", f"vLLM {reported}")]


def _tools(spec: ModelSpec, answer: Answer | None, laws: Mapping[str, Finding]) -> Check:
    """Check that the model calls a tool by itself."""
    if answer is None:
        return ok("tools", f"{spec.name} is asked without tools")
    flags = f"--enable-auto-tool-choice --tool-call-parser {family(spec.name).tool_parser or '...'}"
    if answer.status == 400:
        return fault("tools", "it refuses a request that offers tools", f"Start vLLM with {flags}")
    if answer.status != 200:
        return fault("tools", _failed(answer.status), "Look into that server's log.")
    if laws["tools"].state == "broken":
        return fault("tools", f"{laws['tools'].message}: its parser does not fit", f"Start vLLM with {flags}")
    if laws["tools"].state == "ok":
        return ok("tools", "it calls tools")
    return warning("tools", "it answered without the tool it was told to call", f"Try again; else check {flags}")


def _reasoning(spec: ModelSpec, answer: Answer, laws: Mapping[str, Finding]) -> Check:
    """Check that reasoning is separate from the answer."""
    if not spec.reasoning:
        return ok("reasoning", f"{spec.name} does not reason")
    flag = f"--reasoning-parser {family(spec.name).reasoning_parser or '...'}"
    if answer.status != 200:
        return fault("reasoning", _failed(answer.status), "Look into that server's log.")
    if laws["reasoning"].state == "broken":
        problem = "it writes its reasoning into the answer: no parser, or one that does not fit"
        return fault("reasoning", problem, f"Start vLLM with {flag}")
    if laws["reasoning"].state == "ok":
        return ok("reasoning", "it comes apart from the answer")
    return warning("reasoning", "it answered without reasoning", f"If it should reason, check {flag}")


def _streams(laws: Mapping[str, Finding]) -> Check:
    """Check the laws of streams that have no flag."""
    others = [one for one in laws.values() if one.law not in ("tools", "reasoning", "pairing")]
    if broken := "; ".join(one.message for one in others if one.state == "broken"):
        return warning("streams", broken, "Run python -m agent.conformance with its URL to see it, and update it.")
    return ok("streams", f"{sum(one.state == 'ok' for one in others)} laws of streams were seen to be kept")


def _failed(status: int) -> str:
    return (
        f"it answers HTTP {status}"
        if status
        else f"no answer came within {REQUEST_SECONDS:.0f} seconds, or half of one"
    )


async def llama(local: LocalSettings) -> list[Check]:
    """Check that llama.cpp can be loaded and that there is memory for a model."""
    if local.vllm_base_url:
        return [ok("llama.cpp", "not needed: VLLM_BASE_URL names a server")]
    # In a separate process, because the import crashes on a processor that is too old.
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-c", "import xllamacpp",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    await process.wait()
    if process.returncode and not has_openmp():
        fix = "Install the system package libgomp1 (apt-get install libgomp1)."
        return [fault("llama.cpp", "it needs OpenMP: libgomp.so.1 cannot be loaded", fix)]
    if process.returncode:
        why = "this processor lacks AVX2" if process.returncode == -4 else "it cannot be loaded"
        return [fault("llama.cpp", why, "make setup; else set VLLM_BASE_URL, or use a hosted model.")]
    return [ok("llama.cpp", "it can be loaded"), _memory()]


def _memory() -> Check:
    free = available_memory()
    if free is None:
        return ok("memory", "this system does not say how much is free")
    free_memory = f"{free // 10**6} MB are free"
    if free < _needed_bytes(SMOLLM2):
        fix = "End other programs, allow the container more, or set VLLM_BASE_URL."
        return fault(
            "memory", f"{free_memory}; even {SMOLLM2.spec.label} needs {_needed_bytes(SMOLLM2) // 10**6} MB", fix
        )
    best = BETTER[0]
    if free < _needed_bytes(best):
        fix = "End other programs, or allow the container more."
        return warning("memory", f"{free_memory}; {best.spec.label} needs {_needed_bytes(best) // 10**6} MB", fix)
    return ok("memory", f"{free_memory}, enough for {best.spec.label}")


def _needed_bytes(weights: Weights) -> int:
    """Return the bytes of memory that one conversation needs."""
    return weights.size + OVERHEAD_BYTES + weights.kv_bytes * weights.spec.context_tokens


async def weights(local: LocalSettings) -> list[Check]:
    """Check that a model is on this disk or can be downloaded."""
    if local.vllm_base_url:
        return [ok("weights", "not needed: VLLM_BASE_URL names a server")]
    if own := local.local_model:
        return [_own_file(own)]
    for better in BETTER:
        if await find(better, local.cache_dir):
            return [ok("weights", f"{better.spec.label} is on this disk")]
    tiny = await find(SMOLLM2, local.cache_dir) is not None
    on_disk = f"only {SMOLLM2.spec.label} is on this disk" if tiny else "no model is on this disk"
    if not local.downloads:
        fix = "Start once with a network and without SWITCHBOARD_OFFLINE, or set LOCAL_MODEL or VLLM_BASE_URL."
        return [(warning if tiny else fault)("weights", f"{on_disk}, and downloads are off", fix)]
    if await hub_answers():
        return [ok("weights", f"{on_disk}; a better one is fetched from the model hub at the start")]
    fix = "Check the network and HF_ENDPOINT, or set LOCAL_MODEL or VLLM_BASE_URL."
    if tiny:
        return [warning("weights", f"{on_disk}, and the model hub cannot be reached", fix)]
    return [fault("weights", f"{on_disk}, and the model hub cannot be reached", f"make setup. {fix}")]


def _own_file(path: os.PathLike[str]) -> Check:
    fix = "Set LOCAL_MODEL to a GGUF file that this user may read."
    try:
        with open(path, "rb") as file:
            magic = file.read(4)
    except OSError as error:
        return fault("weights", f"LOCAL_MODEL {os.fspath(path)}: {error.strerror or error}", fix)
    if magic != b"GGUF":
        return fault("weights", f"LOCAL_MODEL {os.fspath(path)} is not a GGUF file", fix)
    return ok("weights", f"LOCAL_MODEL {os.fspath(path)}")


async def keys(env: Mapping[str, str], *, online: bool) -> list[Check]:
    """Check which providers have a key. `online` tests each key with one small request."""
    hosted = [one for one in catalog().providers.values() if one.base_url and one.key_names]
    with_key = [one for one in hosted if default_endpoint(one, env).api_key]
    missing = ", ".join(one.key_names[0] for one in hosted if one not in with_key)
    message = (
        f"set for {', '.join(one.label for one in with_key)}"
        if with_key
        else "none is set; visitors may bring their own"
    )
    found = [ok("keys", message + (f"; not set: {missing}" if missing else ""))]
    return found + [await _check_key(one, env) for one in with_key] if online else found


async def embeddings(name: str, env: Mapping[str, str], *, online: bool) -> list[Check]:
    """Check the embeddings with one short text, those of a hosted provider only if `online`."""
    embedder = embedder_of(name, env)
    if embedder is None:
        return [ok("embeddings", "EMBEDDINGS is not set: searches in documents compare words alone")]
    if "://" not in name and not online:
        return [ok("embeddings", f"{name} is set, and was not tried")]
    try:
        [vector] = await embedder.embed(["One text."], is_query=True)
        return [ok("embeddings", f"{await embedder.name()} makes vectors of {len(vector)} numbers")]
    except AgentError as error:
        fix = (
            "Set EMBEDDINGS to the URL of a server with /v1/embeddings and EMBEDDINGS_API_KEY to its key, or unset it."
        )
        return [fault("embeddings", str(error), fix)]


async def _check_key(provider: ProviderSpec, env: Mapping[str, str]) -> Check:
    name = next(name for name in provider.key_names if env.get(name, "").strip())
    spec = next((one for one in catalog().menu() if one.provider == provider.id), None)
    if spec is None:
        return ok("key", f"{provider.label}: no model of it is on the menu to try {name} with")
    fix = f"Check {name}; keys are made at {provider.keys_at}"
    try:
        connection = connect(spec, default_endpoint(provider, env))
        async with Agent(connection, limits=Limits(steps=1, seconds=REQUEST_SECONDS, retries=0)) as agent:
            result = await agent.ask("Say ok.", max_tokens=64)
    except AgentError as error:
        return fault("key", f"{provider.label}: {error}", fix)
    if result.finish_reason in ("error", "limit"):
        return fault("key", f"{provider.label}: {result.note.detail}", fix)
    return ok("key", f"{provider.label}: {name} works")
