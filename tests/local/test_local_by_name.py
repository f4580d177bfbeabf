"""Local models by name: the first request starts their server, and it ends with the agent."""

from pathlib import Path
from typing import Any

import psutil
import pytest

from agent import Agent, Chat, UnknownModel
from tests.support.waiting import command_of

pytestmark = pytest.mark.slow

NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.fixture(autouse=True)
def a_machine_without_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide this machine's GPU and named servers, use an empty cache folder, and turn off downloads."""
    for name in ("VLLM_BASE_URL", "LLAMA_CPP_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SWITCHBOARD_CACHE", str(tmp_path))
    monkeypatch.setenv("SWITCHBOARD_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


def children() -> list[psutil.Process]:
    return [one for one in psutil.Process().children() if any("llama_server" in word for word in command_of(one))]


@pytest.mark.weights
@pytest.mark.parametrize("name", [NAME, pytest.param("smollm2-135m", marks=pytest.mark.full)])
async def test_name_alone_starts_a_server(name: str) -> None:
    async with Agent(name, provider="llama.cpp") as agent:
        assert children() == [], "started before it was needed"
        first = await agent.ask("Hello", max_tokens=8)
        assert first.text, first.note.detail
        [child] = children()
        again = await agent.ask("And now?", context=first.context, max_tokens=8)
        assert again.text
        assert children() == [child], "another server was started"
        child.kill()
        child.wait(60)
        third = await agent.ask("And after a crash?", max_tokens=8)
        while third.finish_reason == "error":  # asyncio notices the exit a moment after psutil
            third = await agent.ask("And after a crash?", max_tokens=8)
        assert third.text
        [other] = children()
        assert other.pid != child.pid
    assert children() == []


@pytest.mark.weights
def test_chat_ends_the_server_it_started() -> None:
    with Chat(Agent(f"llama.cpp:{NAME}")) as chat:
        assert "".join(str(one.content) for one in chat.query("Hello", max_tokens=8))
        assert len(children()) == 1
    assert children() == []


async def test_missing_weights_are_reported() -> None:
    async with Agent("llama.cpp:Qwen/Qwen3-0.6B") as agent:
        result = await agent.ask("Hello")
    assert result.finish_reason == "error"
    assert "not on this disk, and downloads are off" in result.note.detail


@pytest.mark.parametrize(
    "name", [f"Qwen/Qwen3-{size}" for size in ("1.7B", "4B", "8B", "14B", "32B", "30B-A3B")] + ["vllm:org/any"]
)
def test_unservable_model_explains_the_fix(name: str) -> None:
    with pytest.raises(UnknownModel, match=r"needs a GPU with vLLM.*base_url.*VLLM_BASE_URL.*qwen/qwen3-0.6b"):
        Agent(name)
    assert Agent("Qwen/Qwen3-0.6B").connection.spec.provider == "llama.cpp"


@pytest.mark.parametrize("name", [f"Qwen/Qwen3-{size}" for size in ("0.6B", "8B", "30B-A3B")])
def test_named_server_is_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[Any] = [Agent(name, base_url="http://127.0.0.1:9/v1")]
    monkeypatch.setenv("VLLM_BASE_URL", "http://127.0.0.1:9/v1")
    there.append(Agent(name))
    for agent in there:
        assert agent.connection.endpoint.base_url == "http://127.0.0.1:9/v1"
        assert agent.connection.spec.name == name


def test_gpu_with_vllm_serves_every_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for program in ("vllm", "nvidia-smi"):
        (tmp_path / program).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / program).chmod(0o755)
    spec = Agent("Qwen/Qwen3-32B").connection.spec
    assert (spec.provider, spec.name) == ("vllm", "Qwen/Qwen3-32B")
