"""Responses in a terminal, or in a file that stands for one: print one, or stream a run.

What a model or a tool said is shown as it is: neither rich's markup nor a terminal's control codes in it do anything.
"""

import json
import re
from typing import TYPE_CHECKING, Any

from agent.agent import Agent
from agent.context import Context
from agent.messages.prompt import Prompt
from agent.responses import Response
from agent.result import RunResult

if TYPE_CHECKING:
    from rich.console import Console

LONGEST = 2_000
"""Characters of a tool's arguments or result that are shown."""

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What moves cursors, rings bells, sets titles or turns the direction of writing. Line breaks and tabs stay."""


def display(response: Response, *, console: "Console | None" = None) -> None:
    """Print one response: text as it comes, reasoning dim, calls and results as compact JSON in a frame, errors red.

    A new bubble begins on a new line. Without a `console` it is the one for standard output.
    """
    from rich.panel import Panel
    from rich.text import Text

    console = console or _usual()
    if response.is_type_switched:
        console.print()

    def text(value: Any, style: str = "") -> Text:
        said = _CONTROL.sub("", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
        return Text(said.encode(console.encoding, "replace").decode(console.encoding), style=style)

    def framed(value: Text, title: str, colour: str) -> None:
        console.print(Panel(value, title=text(title), title_align="left", border_style=colour))

    match response.type, response.content:
        case ("output_text", content):
            console.print(text(content), end="", soft_wrap=True)
        case ("reasoning", content):
            console.print(text(content, "dim italic"), end="", soft_wrap=True)
        case ("tool_call", {"name": name, "arguments": arguments}):
            framed(text(_short(arguments)), f"calls {name}", "cyan")
        case ("tool_call_result", {"name": name, "content": content, "is_error": is_error}):
            failed = " failed" if is_error else " gave"
            files = [f"({one.media_type})" for one in response.content.get("files", ())]
            shown = " ".join([*([_short(content)] if content or not files else []), *files])
            framed(text(shown), f"{name}{failed}", "red" if is_error else "green")
        case (kind, content):
            framed(text(content, "red"), kind, "red")


async def stream_to_display(
    agent: Agent, prompt: Prompt, *, context: Context | None = None, console: "Console | None" = None, **options: Any
) -> RunResult:
    """Run, print each response as it comes, and say in a last line how it ended where it did not end well.

    `options` are those of `Agent.run`. Raises `InputError` for a prompt that cannot be used.
    """
    from rich.text import Text

    console = console or _usual()
    run = agent.run(prompt, context=context, **options)
    async for response in run:
        display(response, console=console)
    console.print()
    result = run.result
    assert result is not None
    if result.note.detail and result.finish_reason != "error":
        console.print(Text(_CONTROL.sub("", result.note.detail), style="dim"))
    return result


def _usual() -> "Console":
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text)} characters)"
