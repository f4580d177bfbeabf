"""API keys that visitors typed: who has access, for how long, and which values are refused."""

import asyncio

import pytest

from agent.errors import InputError
from agent.web.chat.model_menu import MAX_KEY_LENGTH, ApiKeys
from tests.support.clocks import run_without_waiting

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
