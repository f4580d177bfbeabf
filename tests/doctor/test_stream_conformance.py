"""The checks of streams find each law that a server breaks, show where, and call nothing ok that they did not see."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import conformance
from agent.conformance import CALL, COUNT, REPEAT, THINK, WRITE, Finding, examine_server, read_events
from agent.local.manager import LocalModels
from agent.settings import ROOT, LocalSettings
from tests.support.ports import free_port
from tests.support.scripted_server import Config, Running, running
from tests.tiers import examples

EMOJI = "👩\u200d🚀 你好 é 🎉"
HEALTHY = {
    THINK[-1]["content"]: "!reasoning 7 has no divisors. !text Yes.",
    REPEAT[-1]["content"]: f"!text {EMOJI}",
    COUNT[-1]["content"]: f"!json {json.dumps([*({'content': f'{n} '} for n in range(8)), {'finish': 'length'}])}",
    WRITE[-1]["content"]: "!tokens 2000 hold 60 nobody",
    CALL[-1]["content"]: '!tool current_time {"zone": "Europe/Paris"} !text It is 12:30.',
}
ALL = {*conformance.LAWS}
Changes = list[tuple[str, str]]


@contextmanager
def serving(changes: Changes = [], scripts: dict[str, str] = {}, *, goes_on: bool = False) -> Iterator[Running]:  # noqa: B006
    """Run a healthy server, with these changes to the bytes of its streams and to its scripts."""

    def spoil(data: bytes) -> bytes:
        for old, new in changes:
            data = data.replace(old.encode(), new.encode("utf-8", "surrogateescape"))
        return data

    config = Config(scripts=HEALTHY | scripts, spoil=spoil, rate=0, goes_on=goes_on)
    with running(config) as server:
        yield server


async def found(server: Running) -> dict[str, Finding]:
    return {one.law: one for one in await examine_server(server.base_url.removesuffix("/v1"))}


def with_state(findings: dict[str, Finding], state: str) -> set[str]:
    return {law for law, one in findings.items() if one.state == state}


async def test_healthy_server_keeps_each_law() -> None:
    with serving() as server:
        findings = await found(server)
        assert {one.message for one in findings.values() if one.state != "ok"} == set()
        assert [*findings] == [*conformance.LAWS]
        server.wait_for(lambda journal: journal[-1]["ended"] == "client_closed")


@pytest.mark.parametrize(
    ("old", "new", "expects"),
    [
        ("data: {", ": ping\n\ndata: {", "comments"),
        ("}\n\n", "}\r\n\r\n", "CRLF"),
        ("data: {", "event: message\nid: 7\ndata:{", ""),
        (
            "data: {",
            'data: {"choices": []}\n\ndata: {"choices": [{"delta": {"content": ""}}]}\n\ndata: {',
            "empty deltas",
        ),
        ('"reasoning": ', '"reasoning_content": ', ""),
        ('"choices": [{', '"choices":\ndata: [{', ""),
    ],
    ids=["comments", "CRLF", "other fields", "empty deltas", "older field", "data in two lines"],
)
async def test_awkward_streams_keep_each_law(old: str, new: str, expects: str) -> None:
    with serving([(old, new)]) as server:
        findings = await found(server)
    assert {one.message for one in findings.values() if one.state != "ok"} == set()
    assert expects in findings["events"].message


BREAKS: dict[str, tuple[str, Changes, str]] = {
    "content type": ("events", [("text/event-stream", "application/json")], "data: {"),
    "half of an object": ("events", [('{"content": "Yes."}', '{"content": "Yes."')], '"Yes."'),
    "a list as content": ("events", [('"content": "Yes."', '"content": ["Yes."]')], '["Yes."]'),
    "an error within": ("events", [('data: {"id"', 'data: {"error": {"message": "no room"}, "id"')], "no room"),
    "no [DONE]": ("end", [("data: [DONE]\n\n", "")], '"usage"'),
    "more after [DONE]": ("end", [("data: [DONE]\n\n", "data: [DONE]\n\ndata: {}\n\n")], "{}"),
    "no reason": ("finish", [('"finish_reason": "stop"', '"finish_reason": null')], '"usage"'),
    "stop at a call": ("finish", [('"tool_calls"}', '"stop"}')], '"stop"'),
    "stop at a cut": ("finish", [('"length"', '"stop"')], '"stop"'),
    "unknown reason": ("finish", [('"finish_reason": "stop"', '"finish_reason": "eos"')], '"eos"'),
    "text after the reason": (
        "finish",
        [('"choices": [], "usage"', '"choices": [{"delta": {"content": "!"}}], "usage"')],
        '"!"',
    ),
    "no usage": ("usage", [('"usage": {', '"used": {')], '"used"'),
    "wrong total": ("usage", [('"total_tokens": ', '"total_tokens": 9')], '"total_tokens": 9'),
    "no tokens": ("usage", [('"prompt_tokens": ', '"prompt": ')], '"prompt": '),
    "half an emoji": ("text", [("\\udc69", "")], "\\ud83d"),
    "replaced character": ("text", [("\\ud83d\\udc69", "\\ufffd")], "\\ufffd"),
    "invalid UTF-8": ("text", [("\\u4f60", "\udce4\udcbd")], "\udce4"),
    "token of a template": ("text", [('"Yes."', '"Yes.<|im_end|>"')], "<|im_end|>"),
    "text within reasoning": ("order", [('"reasoning": " no"', '"content": " no"')], " divisors"),
    "text before reasoning": ("order", [('"reasoning": "7"', '"content": "\\n"')], " has"),
    "tags in the text": ("reasoning", [('"reasoning": ', '"content": '), ('"7"', '"<think>7"')], "<think>7 has"),
    "only a closing tag": ("reasoning", [('"reasoning": ', '"content": '), ('"."', '"</think>"')], "7 has"),
    "tag in the reasoning": ("reasoning", [('"reasoning": "7"', '"reasoning": "<think>7"')], "<think>7 has"),
    "call without an id": ("tools", [('"id": "chatcmpl-tool-0-0", ', "")], "current_time"),
    "no index": ("tools", [('"tool_calls": [{"index": 0, ', '"tool_calls": [{')], "current_time"),
    "a name twice": ("tools", [('"function": {"arg', '"function": {"name": "current_time", "arg')], "current_time"),
    "another id": ("tools", [('{"index": 0, "function"', '{"index": 0, "id": "b", "function"')], '"b"'),
    "no JSON in a call": ("tools", [('"{\\"zo"', '"<zo"')], "<zone"),
    "a call as text": ("tools", [('"tool_calls": [{', '"content": "<tool_call>", "x": [{')], "<tool_call>"),
}
"""The law, what the server changes in the bytes of its streams, and what the shown piece has."""
ALSO = {"more after [DONE]": "events", "a call as text": "finish"}
"""The other law that such a server breaks, too."""


@pytest.mark.parametrize("name", BREAKS)
async def test_each_broken_law_is_named(name: str) -> None:
    law, changes, piece = BREAKS[name]
    with serving(changes) as server:
        findings = await found(server)
    assert with_state(findings, "broken") == {law, ALSO.get(name, law)}
    assert piece in findings[law].piece


async def test_lost_connection_breaks_the_end() -> None:
    with serving(scripts={THINK[-1]["content"]: "!reset 5"}) as server:
        end = (await found(server))["end"]
    assert (end.state, end.message) == ("broken", "the connection broke (ReadError)")


async def test_refused_result_of_a_tool_is_named() -> None:
    call = '!tool current_time {"zone": "Europe/Paris"} !status 400'
    with serving(scripts={CALL[-1]["content"]: call}) as server:
        findings = await found(server)
    assert with_state(findings, "broken") == {"pairing"}
    assert "HTTP 400" in findings["pairing"].message


async def test_answer_that_goes_on_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "CANCEL_SECONDS", 0.1)
    with serving(goes_on=True) as server:
        findings = await found(server)
    assert with_state(findings, "broken") == {"cancel"}
    assert findings["cancel"].piece.endswith("then: 1")


async def test_what_no_answer_shows_is_not_ok() -> None:
    """The model neither reasons nor calls tools nor writes emoji, and ends its long answer early."""
    plain = {prompt: "!text Yes." for prompt in HEALTHY} | {COUNT[-1]["content"]: HEALTHY[COUNT[-1]["content"]]}
    with serving(scripts=plain) as server:
        findings = await found(server)
    assert with_state(findings, "ok") == {"events", "end", "finish", "usage"}
    assert with_state(findings, "not shown") == {"text", "order", "reasoning", "tools", "pairing", "cancel"}


async def test_call_is_forced_if_the_model_makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with `tool_choice` calls the tool for a model that does not. Here another prompt stands for that."""
    real, forced = conformance.ask, [{"role": "user", "content": "Forced."}]

    async def ask(client: Any, url: str, model: str, messages: Any, tokens: int = 256, **more: Any) -> Any:
        return await real(client, url, model, forced if more.get("tool_choice") == "required" else messages, tokens)

    monkeypatch.setattr(conformance, "ask", ask)
    scripts = {CALL[-1]["content"]: "!text No.", "Forced.": '!tool current_time {"zone": "Paris"}'}
    with serving(scripts=scripts) as server:
        findings = await found(server)
    assert {"tools", "pairing"} <= with_state(findings, "ok")


async def test_refused_tools_are_not_shown() -> None:
    with serving(scripts={CALL[-1]["content"]: "!status 400"}) as server:
        findings = await found(server)
    assert with_state(findings, "not shown") == {"tools", "pairing"}
    assert "not valid" in findings["tools"].piece


@settings(max_examples=examples(60))
@given(st.binary(max_size=200), st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r"]))
def test_any_bytes_are_read(noise: bytes, blank: bytes) -> None:
    events, _rest = read_events(noise.replace(b"\n", b"").replace(b"\r", b"") + blank + b'data: {"a": 1}' + blank)
    assert events[-1].value == {"a": 1}


def told(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["conformance", *arguments])
    return conformance.main()


def test_command_prints_piece_and_consequence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving() as server:
        assert told(monkeypatch, server.url) == 0
    healthy = capsys.readouterr().out
    with serving([('"reasoning": ', '"content": '), ('"7"', '"<think>\\u001b[31m7"')]) as server:
        assert told(monkeypatch, server.base_url, "--model", "Qwen/Qwen3-8B") == 1
    broken = capsys.readouterr().out
    assert [line.split()[0] for line in healthy.splitlines() if not line.startswith(" ")] == ["ok"] * len(ALL)
    assert "so: " not in healthy
    assert "sent: <think>\\x1b[31m7 has" in broken
    assert f"so: {conformance.LAWS['reasoning'][1]}" in broken


def test_command_needs_a_server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SOME_KEY", "right")
    with running(Config(api_key="right")) as server:
        assert told(monkeypatch, server.url) == 1
        assert "was rejected" in capsys.readouterr().err
        assert told(monkeypatch, server.url, "--key-from", "SOME_KEY") in (0, 1)
        assert "ok         end" in capsys.readouterr().out
    assert told(monkeypatch, server.url, "--key-from", "NO_KEY") == 1
    assert "NO_KEY is not set" in capsys.readouterr().err
    assert told(monkeypatch, f"http://127.0.0.1:{free_port()}/v1/chat/completions") == 1
    assert "must end before" in capsys.readouterr().err
    assert told(monkeypatch, f"http://127.0.0.1:{free_port()}") == 1
    assert "cannot be reached" in capsys.readouterr().err
    assert told(monkeypatch, f"http://127.0.0.1:{free_port()}", "--model", "Qwen/Qwen3-8B") == 1
    assert "does not stream" in capsys.readouterr().err


async def test_model_that_stops_by_itself_breaks_no_law() -> None:
    """A small model can count to one."""
    with serving(scripts={COUNT[-1]["content"]: "!text 1"}) as server:
        assert with_state(await found(server), "broken") == set()


@pytest.mark.slow
@pytest.mark.weights
async def test_llama_cpp_keeps_the_laws(tmp_path: Path) -> None:
    local = LocalModels(LocalSettings(cache_dir=ROOT / ".cache", downloads=False), say=lambda _line: None)
    try:
        (served, *_) = await local.ready()
        findings = {one.law: one for one in await examine_server(served.endpoint)}
    finally:
        await local.aclose()
    assert with_state(findings, "broken") == set()
    assert {"events", "end", "finish", "usage", "cancel"} <= with_state(findings, "ok")
    assert "reasoning" in with_state(findings, "not shown")
