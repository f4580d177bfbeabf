"""A page open to everybody: what it allows, what it refuses, and the link that shares it."""

import os
import stat
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing, suppress
from pathlib import Path
from time import monotonic

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import InputError, Limited
from agent.models.catalog import ModelSpec
from agent.settings import PublicSettings, load_settings
from agent.web.chat.choices import Choices
from agent.web.chat.rate_limit import MINUTE_SECONDS, RateLimiter, Reservation
from agent.web.chat.visitor import Visitor as Asker
from tests.conftest import App, becomes
from tests.support.clocks import Clock
from tests.support.scripted_server import Running
from tests.support.views import chats_of, watch

StartApp = Callable[..., App]
SPEC = ModelSpec(id="local:qwen", name="Qwen/Qwen3-8B", label="Qwen", provider="llama.cpp")
LIMITS = PublicSettings(messages=3, messages_in_all=5, answers_each=1, answers=2)
OFFLINE = {"GRADIO_SHARE_SERVER_ADDRESS": "127.0.0.1:9", "HF_HOME": "/nonexistent"}


def asker(owner: str, *, guest: bool = False) -> Asker:
    return Asker(owner=owner, guest=guest, address=None)


ANN, BOB = asker("ann"), asker("bob")


def test_nothing_is_refused_without_limits() -> None:
    gate = RateLimiter(None)
    for _ in range(1000):
        gate.reserve_answer(ANN)
        gate.reserve_fetch(ANN)


def test_visitor_has_messages_per_minute() -> None:
    gate = RateLimiter(LIMITS, clock := Clock())
    for _ in range(3):
        gate.reserve_answer(ANN).release()
        clock.now += 1
    with pytest.raises(Limited, match=r"Limit: 3 messages a minute. Try again in 57 s."):
        gate.reserve_answer(ANN)
    gate.reserve_answer(BOB).release()
    clock.now += 57
    gate.reserve_answer(ANN)


def test_fetches_have_limits_of_their_own() -> None:
    gate = RateLimiter(LIMITS, Clock())
    with gate.reserve_fetch(ANN), gate.reserve_fetch(ANN), pytest.raises(Limited, match=r"2 pictures .* each visitor"):
        gate.reserve_fetch(ANN)
    for number in range(3):
        gate.reserve_fetch(asker(f"visitor {number}")).release()
    with pytest.raises(Limited, match="all visitors together: 5 images"):
        gate.reserve_fetch(asker("one more"))


def test_free_refusal_is_not_counted_for_all() -> None:
    gate = RateLimiter(LIMITS, clock := Clock())

    def refuse(owner: str, *, costly: bool = False, error: Exception | None = None) -> None:
        with suppress(InputError, ValueError), gate.reserve_answer(asker(owner)) as place:
            if costly:
                place.count_for_all()
            raise error or InputError("Write something first.")

    for number in range(10):
        for _ in range(3):
            refuse(f"visitor {number}")
        with pytest.raises(Limited, match="Limit: 3 messages"):
            refuse(f"visitor {number}")
    for number in range(3):
        refuse(f"costly {number}", costly=True)
    for number in range(2):
        refuse(f"broken {number}", error=ValueError())
    with pytest.raises(Limited, match="all visitors together: 5 messages"):
        gate.reserve_answer(ANN)
    clock.now += MINUTE_SECONDS
    with suppress(InputError), gate.reserve_answer(ANN):
        clock.now += MINUTE_SECONDS
        gate.reserve_answer(BOB).release()
        raise InputError("Too late.")
    for number in range(4):
        gate.reserve_answer(asker(f"later {number}")).release()
    with pytest.raises(Limited, match="all visitors together: 5 messages"):
        gate.reserve_answer(ANN)


def test_slot_is_kept_by_new_holder() -> None:
    gate = RateLimiter(LIMITS, Clock())
    with gate.reserve_answer(ANN) as place:
        place.hand_over()
    with pytest.raises(Limited):
        gate.reserve_answer(ANN)
    place.release()
    with suppress(ValueError), gate.reserve_answer(ANN):
        raise ValueError
    gate.reserve_answer(ANN)


@given(
    st.lists(
        st.tuples(st.sampled_from(["ann", "bob", "guest 1", "guest 2"]), st.floats(0, 30), st.integers(0, 3)),
        max_size=60,
    )
)
def test_limits_hold_in_any_order(visits: list[tuple[str, float, int]]) -> None:
    """No minute and no moment exceeds its limit, in any order of arrivals and departures."""
    gate = RateLimiter(LIMITS, clock := Clock())
    passed, held = list[tuple[str, float]](), list[tuple[str, Reservation]]()
    for owner, later, ended in visits:
        clock.now += later
        for _, place in held[:ended]:
            place.release()
        del held[:ended]
        guest = owner.startswith("guest")
        bucket = "guest" if guest else owner
        try:
            held.append((bucket, gate.reserve_answer(asker(owner, guest=guest))))
        except Limited:
            recent = [who for who, at in passed if at > clock.now - MINUTE_SECONDS]
            now = [who for who, _ in held]
            assert recent.count(bucket) == 3 or len(recent) == 5 or now.count(bucket) == 1 or len(now) == 2
            continue
        passed.append((bucket, clock.now))
        recent = [who for who, at in passed if at > clock.now - MINUTE_SECONDS]
        assert len(recent) <= 5
        assert len(held) <= 2
        assert max(Counter(recent).values()) <= 3
        assert max(Counter(who for who, _ in held).values()) <= 1


@pytest.mark.parametrize(
    ("env", "on", "keys"), [({}, False, None), ({"SHARE": "1"}, True, False), ({"SPACE_ID": "me/it"}, True, True)]
)
def test_opening_the_page_turns_limits_on(env: dict[str, str], on: bool, keys: bool | None, tmp_path: Path) -> None:
    settings = load_settings(tmp_path / "none.toml", env)
    assert (settings.public is not None) is on
    assert settings.share is ("SHARE" in env)
    assert settings.public is None or settings.public.keys is keys


@pytest.mark.slow
async def test_returning_page_keeps_its_answer(tmp_path: Path, model_server: Running) -> None:
    page = chats_of(model_server.base_url, tmp_path, SPEC, public=LIMITS, grace_seconds=1.0)
    live = await page.send(Asker(owner="ann"), None, {"text": "!tokens 4000 @100"}, Choices())
    assert live is not None
    async with aclosing(watch(page, "ann", live.conversation_id)) as looking:
        await anext(looking)
    async with aclosing(watch(page, "ann", live.conversation_id)) as again:
        began = monotonic()
        async for _ in again:
            if monotonic() - began > 2:
                break
    assert not live.run.done
    result = await live.run
    assert (result.finish_reason, live.run.cancel_reason) == ("cancelled", "client_disconnect")
    await page.aclose()


def test_failed_share_link_is_explained(start_app: StartApp) -> None:
    app = start_app(SHARE="1", **OFFLINE)
    becomes(True, lambda: "No share link" in app.log)
    assert "needs the network" in app.log
    assert "Traceback" not in app.log
    assert Client(app.url, verbose=False).predict({"text": "!text Hi.", "files": []}, api_name="/chat")["text"] == "Hi."


def test_shared_page_has_link_limits_and_no_leftovers(
    start_app: StartApp, tmp_path: Path, model_server: Running
) -> None:
    home = tmp_path / "hf"
    program = frpc(home)
    config = "[public]\nmessages = 2\npublic_tools = []\n[agent]\ntools = ['agent.tools.builtin:calculate']\n"
    app = start_app(config, SHARE="1", HF_HOME=str(home), GRADIO_SHARE_SERVER_ADDRESS="127.0.0.1:9")
    becomes(True, lambda: "shared at https://example.invalid" in app.log)
    client = Client(app.url, verbose=False)
    client.predict({"text": "!text One.", "files": []}, "", {"tools": True}, api_name="/chat")
    assert not model_server.journal()[-1]["body"].get("tools")
    client.predict({"text": "!text Two.", "files": []}, api_name="/chat")
    with pytest.raises(AppError, match="Limit: 2 messages a minute"):
        client.predict({"text": "!text Three.", "files": []}, api_name="/chat")
    pid = int((home / "pid").read_text())
    os.kill(pid, 0)
    app.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert program.exists()


def frpc(home: Path) -> Path:
    """Install a fake tunnel program that reports a connection, because the real one needs the network."""
    from gradio.tunneling import BINARY_FILENAME

    program = home / "gradio" / "frpc" / BINARY_FILENAME
    program.parent.mkdir(parents=True)
    program.write_text(
        f"#!/bin/sh\necho $$ > {home}/pid\necho 'start proxy success: https://example.invalid'\nexec sleep 600\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    return program
