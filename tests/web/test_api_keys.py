"""API keys that visitors typed: who has access, for how long, and which values are refused."""

import asyncio
from pathlib import Path

import pytest

from agent.errors import InputError
from agent.history.memory import MemoryStore
from agent.web.chat.choices import Choices
from agent.web.chat.journal import request_of
from agent.web.chat.model_menu import MAX_KEY_LENGTH, ApiKeys
from agent.web.chat.visitor import Visitor
from tests.support.clocks import run_without_waiting
from tests.support.models import QWEN3
from tests.support.scripted_server import Running
from tests.support.views import chats_of

KEY = "sk-typed-by-a-visitor-123456"


async def test_key_belongs_to_owner_and_provider() -> None:
    keys = ApiKeys(60)
    keys.put("ann", "openai", f"  {KEY}\n")
    assert keys.get("ann", "openai") == KEY
    assert keys.get("ann", "xai") is None
    assert keys.get("bob", "openai") is None
    assert keys.has_any("ann")
    assert not keys.has_any("bob")


async def test_forgetting_keys_keeps_those_of_others() -> None:
    keys = ApiKeys(60)
    keys.put("ann", "openai", KEY)
    keys.put("ann", "xai", "xai-1")
    keys.put("bob", "xai", "xai-2")
    keys.forget("ann")
    assert keys.get("ann", "openai") is None
    assert keys.get("ann", "xai") is None
    assert not keys.has_any("ann")
    assert keys.get("bob", "xai") == "xai-2"
    keys.forget("ann")


@pytest.mark.parametrize("typed", ["", "   ", "two words", "k" * (MAX_KEY_LENGTH + 1), "clé-secrète", "a\nb", "a\0b"])
async def test_invalid_key_is_refused_unrepeated(typed: str) -> None:
    keys = ApiKeys(60)
    with pytest.raises(InputError) as refused:
        keys.put("ann", "openai", typed)
    assert not typed.strip() or typed not in str(refused.value)
    assert not keys.has_any("ann")


def test_key_expires_without_sign_of_life() -> None:
    async def live() -> tuple[bool, bool, bool]:
        keys = ApiKeys(60)
        keys.put("ann", "openai", KEY)
        keys.put("bob", "openai", KEY)
        for _ in range(59):
            await asyncio.sleep(1)
            keys.keep_alive("ann")
        before = keys.has_any("bob")
        await asyncio.sleep(2)
        return before, keys.has_any("bob"), keys.has_any("ann")

    assert run_without_waiting(live()) == (True, False, True)


async def test_keys_are_hidden_in_repr() -> None:
    keys = ApiKeys(60)
    keys.put("ann", "openai", KEY)
    assert KEY not in repr(vars(keys))


@pytest.mark.parametrize("provider", ["huggingface", "vllm"])
async def test_stored_run_says_that_it_uses_a_typed_key(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    """Another process that finishes it must not do so with the owner's key."""
    monkeypatch.setenv("HUGGINGFACE_BASE_URL", server.base_url)
    page = chats_of(server.base_url, tmp_path, QWEN3, store=(store := MemoryStore()))
    page.models.keys.put("ann", "huggingface", KEY)
    choices = Choices(model=f"{provider}:Qwen/Qwen3-8B")
    live = await page.send(Visitor(owner="ann"), None, {"text": "!tokens 9 hold 3 key"}, choices)
    assert live is not None
    request = request_of(await store.runs.events(live.run_id, owner="ann"))
    server.release("key")
    await live.wait_for_end()
    await page.aclose()
    assert request is not None
    assert request.own_key is (provider == "huggingface")
