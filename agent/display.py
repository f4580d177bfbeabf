"""Shows responses or a whole run in a terminal, in a file in place of a terminal, or in a notebook.

Text of a model or a tool is printed literally: rich's markup and a terminal's control codes in it have no effect.
A notebook renders it as Markdown, in one output that grows (see `agent.rendering.notebook`).
"""

import asyncio
import inspect
import json
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING, Any, Unpack, cast

from agent.agent import Agent
from agent.context import Context
from agent.errors import InputError
from agent.keyword_arguments import shown
from agent.messages.prompt import Prompt
from agent.responses import Response
from agent.result import RunOptions, RunResult
from agent.runtime.run import Run

if TYPE_CHECKING:
    from rich.console import Console

MAX_CHARACTERS = 2_000
"""The most characters of a tool's arguments or result that are shown."""

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that move the cursor, ring the bell, set the title or change the text direction; no newlines or tabs."""


PAUSE_SECONDS = 0.1
"""The least time between two updates of an output in a notebook, each of which has the whole text."""

_following: set[asyncio.Task[None]] = set()
"""Tasks that show runs. Strong references, because the event loop holds tasks only weakly."""


def display(value: Response | Run[Any] | RunResult[Any] | Context, *, console: "Console | None" = None) -> None:
    """Show a response in a terminal or a notebook, or in a notebook also a run, a result or a context.

    A terminal gets plain text, dim reasoning, calls and results as compact JSON in a frame, and red errors. A new
    bubble begins on a new line. The default `console` prints to standard output.

    A notebook gets rendered Markdown. The responses that a cell displays update one output, and so does a run, also
    while later cells run: `display(run)` begins it and returns at once, and `await run` gives the result. Anything else
    is shown as IPython's own `display` does. Raises `InputError` for what a terminal cannot show.
    """
    shell = _notebook() if console is None else None
    if shell is None:
        _print(value, console or _usual())
    elif isinstance(value, Run):
        _keep(asyncio.get_running_loop().create_task(_follow(value.start(), _Output(shell, value))))
    elif isinstance(value, Response):
        _Output.of_cell(shell).add(value)
    else:
        _ipython().display(value)


_WRITTEN: Mapping[str, str] = {
    "RunResult": "print(result)",
    "Context": "print(context.to_json())",
    "Agent": "await stream_to_display(agent, prompt)",
    "Chat": "for response in chat.query(prompt): display(response)",
}
"""The calls for values that a terminal cannot show, by the names of their classes."""


def _print(value: object, console: "Console") -> None:
    if isinstance(value, Run):
        raise InputError(
            "display(run) shows a run in a notebook; elsewhere write `async for response in run: display(response)`, "
            "or `await stream_to_display(agent, prompt)`"
        )
    if inspect.iscoroutine(value):
        value.close()
        raise InputError(f"display takes a value, not the coroutine {value.__name__!r}: write await before the call")
    if not isinstance(value, Response):
        meant = _WRITTEN.get(type(value).__name__, "print(...)")
        raise InputError(f"display prints responses, not {shown(value)}: write {meant}")
    _print_response(cast(Any, value), console)


def _print_response(response: Response, console: "Console") -> None:
    from rich.panel import Panel
    from rich.text import Text

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
    """Run and show each response as it arrives. If the run ends early, show the reason in a last line.

    A notebook shows the run in one output, as `display(run)` does. `RunOptions` describes the `options`. Raises
    `InputError` for an invalid prompt.
    """
    from rich.text import Text

    if not isinstance(cast(object, agent), Agent):
        raise InputError(f"stream_to_display takes an agent and a prompt, not {shown(agent)} and {shown(prompt)}")
    run = agent.run(prompt, context=context, **options)
    if console is None and (shell := _notebook()) is not None:
        following = _keep(asyncio.create_task(_follow(run, _Output(shell, run))))
        result = await run.finished()
        await following
        return result
    console = console or _usual()
    async for response in run:
        display(response, console=console)
    console.print()
    result = await run.finished()
    if result.note.detail and result.finish_reason != "error":
        console.print(Text(_CONTROL.sub("", result.note.detail), style="dim"))
    return result


class _Output:
    """An output of a notebook that shows a run as it grows, or else the responses that one cell displays.

    The end of a cell shows what has come since the last update.
    """

    _of_cell: "_Output | None" = None

    def __init__(self, shell: Any, run: Run[Any] | None = None) -> None:
        self._run, self._handle = run, _ipython().DisplayHandle()
        self._responses = list[Response]() if run is None else run.responses
        self._events, self._shown, self._shown_at = shell.events, (-1, False), 0.0
        self._shown_by_cell: tuple[int, bool] = (-1, False)
        self._events.register("post_run_cell", self._end_cell)

    @classmethod
    def of_cell(cls, shell: Any) -> "_Output":
        """Return the output of the responses that the cell displays."""
        cls._of_cell = cls._of_cell or cls(shell)
        return cls._of_cell

    def add(self, response: Response) -> None:
        """Show one more response."""
        self._responses.append(response)
        if monotonic() - self._shown_at >= PAUSE_SECONDS:
            self.show()

    def show(self, *, by_cell: bool = False) -> None:
        """Show all responses so far, if there are more than are shown.

        Some programs drop what a task shows after its cell. So the end of a later cell shows it again (`by_cell`).
        """
        from agent.rendering.notebook import responses_to_markdown

        result = self._run.result if self._run is not None else None
        before, self._shown = self._shown, (len(self._responses), result is not None)
        if self._shown == (self._shown_by_cell if by_cell else before):
            return
        self._shown_by_cell = self._shown if by_cell else self._shown_by_cell
        text = responses_to_markdown(self._responses, result.note.detail if result and not result.failed else "")
        show = self._handle.display if before[0] < 0 else self._handle.update
        show({"text/markdown": text, "text/plain": text}, raw=True)
        self._shown_at = monotonic()

    def _end_cell(self, _result: object) -> None:
        self.show(by_cell=True)
        if self._run is None:
            _Output._of_cell = None
        if self._run is None or self._run.done:
            self._events.unregister("post_run_cell", self._end_cell)


async def _follow(run: Run[Any], output: _Output) -> None:
    """Show the run until it has ended."""
    while not run.done:
        seen = len(run.responses)
        output.show()
        await asyncio.sleep(PAUSE_SECONDS)
        await run.wait_for_update(seen)
    output.show()


def _keep(task: "asyncio.Task[None]") -> "asyncio.Task[None]":
    _following.add(task)
    task.add_done_callback(_following.discard)
    return task


def _ipython() -> Any:
    """Return the module `IPython.display`. Only a program in a notebook calls this."""
    return import_module("IPython.display")


def _notebook() -> Any:
    """Return IPython's shell if this program is in a notebook, None if not. Imports nothing."""
    package: Any = sys.modules.get("IPython")
    shell = package.get_ipython() if hasattr(package, "get_ipython") else None
    return shell if getattr(shell, "kernel", None) is not None else None


def _usual() -> "Console":
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}… ({len(text)} characters)"
