"""The display of responses in a terminal: each type in its own way. Model output cannot control the terminal."""

import io
from typing import Any

import pytest
from rich.console import Console

from agent import Agent, Endpoint, InputError, Response, connect, display, stream_to_display, tool
from agent.display import MAX_CHARACTERS
from tests.support.models import QWEN3
from tests.support.scripted_server import Running


def paper(*, terminal: bool = False, encoding: str = "utf-8") -> Console:
    """Return a console that writes to memory."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    return Console(file=file, force_terminal=terminal, width=80, color_system="standard" if terminal else None)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.TextIOWrapper)
    return console.file.buffer.getvalue().decode(console.file.encoding)  # type: ignore[attr-defined]


CALL = {"id": "c", "name": "add", "arguments": {"a": 1, "ä": [2]}}


def result(content: str, *, is_error: bool) -> dict[str, Any]:
    return {"id": "c", "name": "add", "content": content, "is_error": is_error}


REFUSED = {**result("The user refused this call.", is_error=True), "is_refused": True}


@pytest.mark.parametrize(
    ("response", "words", "style"),
    [
        (Response("output_text", "Hello", True), "\nHello", None),
        (Response("output_text", "Hello", False), "Hello", None),
        (Response("reasoning", "Hm.", False), "Hm.", "\x1b[2;3m"),
        (Response("tool_call", CALL, True), '│ {"a": 1, "ä": [2]} ', "\x1b[36m"),
        (Response("tool_call", CALL, True), "calls add", "\x1b[36m"),
        (Response("tool_call_result", result("3", is_error=False), True, "tool"), "add gave", "\x1b[32m"),
        (Response("tool_call_result", result("No.", is_error=True), True, "tool"), "add failed", "\x1b[31m"),
        (Response("tool_call_result", REFUSED, True, "tool"), "add was refused", "\x1b[33m"),
        (Response("error", "It broke.", True), "│ It broke. ", "\x1b[31m"),
    ],
)
def test_each_type_has_its_display(response: Response, words: str, style: str | None) -> None:
    plain, coloured = paper(), paper(terminal=True)
    display(response, console=plain)
    display(response, console=coloured)
    assert words in shown(plain)
    assert "\x1b" not in shown(plain), "escape codes without a terminal"
    assert (style or "") in shown(coloured)
    assert ("\x1b" in shown(coloured)) == (style is not None)


@pytest.mark.parametrize("text", ["[red]a[/red]", "[/]", "[link=http://x]a[/link]", ":smile:", "[bold", "a\\[b]"])
@pytest.mark.parametrize("kind", ["output_text", "reasoning", "tool_call_result", "error"])
def test_markup_in_text_is_escaped(kind: Any, text: str) -> None:
    console = paper()
    content: Any = result(text, is_error=False) if kind == "tool_call_result" else text
    display(Response(kind, content, True), console=console)
    assert text in shown(console)


def test_markup_in_names_is_escaped() -> None:
    console = paper()
    display(Response("tool_call", {"id": "c", "name": "[red]a", "arguments": {"b": "[/]"}}, True), console=console)
    assert "calls [red]a" in shown(console)
    assert '{"b": "[/]"}' in shown(console)


def test_control_sequences_are_removed() -> None:
    console = paper(terminal=True)
    display(Response("output_text", "a\x1b]0;title\x07\x1b[2Jb\u202ec\x9b1md\ne", False), console=console)
    assert shown(console) == "a]0;title[2Jbc1md\ne"


def test_unknown_characters_become_question_marks() -> None:
    console = paper(encoding="ascii")
    display(Response("output_text", "Grüße 🎉", False), console=console)
    display(Response("error", "ä", True), console=console)
    assert shown(console).startswith("Gr??e ?")


def test_long_result_is_cut() -> None:
    console = paper()
    display(Response("tool_call_result", result("x" * 9_000, is_error=False), True, "tool"), console=console)
    assert shown(console).count("x") == MAX_CHARACTERS
    assert "(9000 characters)" in shown(console)


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def test_run_is_shown_while_it_runs(server: Running) -> None:
    console = paper()
    async with Agent(connect(QWEN3, Endpoint(server.base_url)), tools=[add]) as agent:
        first = await stream_to_display(
            agent, '!reasoning Hm. !tool add {"a": 1, "b": 2} !text Three.', console=console
        )
        second = await stream_to_display(agent, "!length 2", context=first.context, console=console, max_tokens=9)
        failed = await stream_to_display(agent, "!cut 1", console=console)
        withheld = await stream_to_display(agent, "!refusal No.", console=console)
        with pytest.raises(InputError):
            await stream_to_display(agent, "", console=console)
    assert (first.text, second.finish_reason, failed.finish_reason) == ("Three.", "length", "error")
    assert len(second.context.messages) == 6
    out = shown(console)
    order = ["Hm.", "calls add", '{"a": 1, "b": 2}', "add gave", "│ 3 ", "Three.\n", "## word0 word1", "broke off"]
    assert sorted(order, key=out.index) == order
    assert out.count("broke off") == 1, "an error is shown once"
    assert withheld.note.detail in out


def test_default_console_is_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    display(Response("output_text", "[b]Hello[/b] 1", True))
    assert capsys.readouterr().out == "\n[b]Hello[/b] 1"
