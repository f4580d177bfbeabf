"""Prints responses or a whole run to a terminal, or to a file in place of a terminal.

Text of a model or a tool is printed literally: rich's markup and a terminal's control codes in it have no effect.
"""

import json
import re
from typing import TYPE_CHECKING, Any, Unpack

from agent.agent import Agent
from agent.context import Context
from agent.messages.prompt import Prompt
from agent.responses import Response
from agent.result import RunOptions, RunResult

if TYPE_CHECKING:
    from rich.console import Console

MAX_CHARACTERS = 2_000
"""The most characters of a tool's arguments or result that are shown."""

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that move the cursor, ring the bell, set the title or change the text direction; no newlines or tabs."""


def display(response: Response, *, console: "Console | None" = None) -> None:
    """Print one response: plain text, dim reasoning, calls and results as compact JSON in a frame, red errors.

    A new bubble begins on a new line. The default `console` prints to standard output.
    """
    from rich.panel import Panel
    from rich.text import Text

    console = console or _usual()
    if response.is_type_switched:
        console.print()

    def text(value: Any, style: str = "") -> Text:
        text = _CONTROL.sub("", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
        return Text(text.encode(console.encoding, "replace").decode(console.encoding), style=style)

    def framed(value: Text, title: str, colour: str) -> None:
        console.print(Panel(value, title=text(title), title_align="left", border_style=colour))

    match response.type:
        case "output_text":
            console.print(text(response.content), end="", soft_wrap=True)
        case "reasoning":
            console.print(text(response.content, "dim italic"), end="", soft_wrap=True)
        case "tool_call":
            framed(text(_short(response.content["arguments"])), f"calls {response.content['name']}", "cyan")
        case "tool_call_result":
            content, is_error = response.content["content"], response.content["is_error"]
            files = [f"({one.media_type})" for one in response.content.get("files", ())]
            shown = " ".join([*([_short(content)] if content or not files else []), *files])
            refused = response.content.get("is_refused", False)
            title = f"{response.content['name']} {'was refused' if refused else 'failed' if is_error else 'gave'}"
            framed(text(shown), title, "yellow" if refused else "red" if is_error else "green")
        case "user_message":
            framed(text(response.content), "you", "blue")
        case "error":
            framed(text(response.content, "red"), "error", "red")


async def stream_to_display(
    agent: Agent,
    prompt: Prompt,
    *,
    context: Context | None = None,
    console: "Console | None" = None,
    **options: Unpack[RunOptions],
) -> RunResult:
    """Run and print each response as it arrives. If the run ends early, print the reason in a last line.

    `RunOptions` describes the `options`. Raises `InputError` for an invalid prompt.
    """
    from rich.text import Text

    console = console or _usual()
    run = agent.run(prompt, context=context, **options)
    async for response in run:
        display(response, console=console)
    console.print()
    result = await run.finished()
    if result.note.detail and result.finish_reason != "error":
        console.print(Text(_CONTROL.sub("", result.note.detail), style="dim"))
    return result


def _usual() -> "Console":
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}… ({len(text)} characters)"
