"""A chat in the terminal: reads lines, shows answers, stops them at Ctrl-C, asks the questions of a suspended run.

The main thread reads and waits, so that it receives Ctrl-C. The runs, and our own model server if there is one, live in
an event loop in another thread. A conversation can be kept in a JSON file, which is replaced as a whole, so that it is
never half written.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_ai.messages import BinaryContent, ModelMessage, ModelRequest, UserPromptPart

from agent.agent import Agent
from agent.context import Context
from agent.display import display
from agent.errors import AgentError, HistoryError, InputError
from agent.files.parts import Audio, Image
from agent.history import Note
from agent.limits import Limits
from agent.providers.connection import Connection
from agent.responses import BubbleMarker, pieces_of, steered_text
from agent.result import Journal, Options, RunResult
from agent.runtime.loop_thread import LoopThread
from agent.runtime.run import Run
from agent.suspension.seals import Seals
from agent.suspension.suspended_run import SCHEMA, Approve, Pending, Refuse, Suspension
from agent.tools.function_tools import Function, Tool, Toolset

FORMAT, VERSION = "switchboard conversation", 1

# A list, because an adapter of one dataclass accepts no config, and bytes need this one.
_SUSPENSIONS = TypeAdapter(
    list[Suspension], config=ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", defer_build=True)
)


@dataclass(frozen=True, slots=True)
class ConversationState:
    """The state of a conversation between two runs."""

    context: Context = field(default_factory=Context)
    suspension: Suspension | None = None


@dataclass(frozen=True, slots=True)
class ConversationFile:
    """The file of one conversation."""

    path: Path

    def load(self) -> ConversationState:
        """Read the file. Without a file, return a new conversation. Raises `InputError` for any other file."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ConversationState()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"The conversation {self.path.name!r} cannot be read: {error}") from error
        try:
            found: object = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict) or cast(dict[str, Any], found).get("format") != FORMAT:
            raise InputError(f"{self.path.name!r} is no conversation that was kept here; it is left as it is.")
        table = cast(dict[str, Any], found)
        if table.get("version") != VERSION:
            raise InputError(f"{self.path.name!r} was kept by another version of this program; it is left as it is.")
        try:
            context = Context.from_json(json.dumps(table.get("context")))
            suspended = [table["suspension"]] if table.get("suspension") else []
            [*suspension] = _SUSPENSIONS.validate_json(json.dumps(suspended))
        except (InputError, ValidationError) as error:
            raise InputError(f"The conversation {self.path.name!r} is damaged; it is left as it is.") from error
        if any(one.schema != SCHEMA for one in suspension):
            raise InputError(f"{self.path.name!r} was kept by another version of this program; it is left as it is.")
        return ConversationState(context, suspension[0] if suspension else None)

    def save(self, state: ConversationState) -> None:
        """Replace the file. Raises `HistoryError` if that fails."""
        waiting = [state.suspension] if state.suspension is not None else []
        [*suspended] = json.loads(_SUSPENSIONS.dump_json(waiting))
        value = {
            "format": FORMAT,
            "version": VERSION,
            "context": json.loads(state.context.to_json()),
            "suspension": suspended[0] if suspended else None,
        }
        folder = self.path.parent
        try:
            with NamedTemporaryFile("w", dir=folder, prefix=".", suffix=".tmp", delete=False, encoding="utf-8") as new:
                try:
                    json.dump(value, new, ensure_ascii=False)
                    new.flush()
                    os.fsync(new.fileno())
                    os.replace(new.name, self.path)
                except BaseException:
                    os.unlink(new.name)
                    raise
        except OSError as error:
            raise HistoryError(f"The conversation cannot be kept in {str(self.path)!r}: {error.strerror}") from error

    def journal(self, context: Context) -> Journal:
        """Return a journal that stores each message of a run when it is finished. A crash loses only the last one."""
        return _Journal(self, context)


class _Journal:
    """Writes the conversation so far to the file."""

    def __init__(self, file: ConversationFile, context: Context) -> None:
        self._file, self._context = file, context

    async def write(self, message: ModelMessage, note: Note) -> None:
        """Store the conversation with this message."""
        del note
        self._context = self._context.extended(message)
        await asyncio.to_thread(self._file.save, ConversationState(self._context))


Read = Callable[[str, str], str | None]
"""Reads a line, with a prompt and an editable start. Returns None at the end of the input."""


def ask(pending: Pending, read: Read) -> str | Approve | Refuse | None:
    """Return the person's answer, or None without one."""
    print(f"? {_plain(pending.sentence)}", flush=True)
    if pending.kind == "question":
        for number, choice in enumerate(pending.choices, 1):
            print(f"  {number}. {_plain(choice)}", flush=True)
        line = read("answer> ", "")
        given = (line or "").strip()
        if given.isdecimal() and 1 <= int(given) <= len(pending.choices):
            return pending.choices[int(given) - 1]
        return given or None
    print(_plain(f"  {pending.name}({json.dumps(dict(pending.arguments), ensure_ascii=False)})"), flush=True)
    while (line := read("y, n or edit> ", "")) is not None:
        word, _, rest = line.strip().partition(" ")
        match word.lower():
            case "y" | "yes":
                return Approve()
            case "n" | "no":
                return Refuse(rest)
            case "e" | "edit":
                if (arguments := _edit_arguments(pending, read)) is not None:
                    return Approve(arguments)
            case "":
                return None
            case _:
                print("y approves it, n REASON refuses it, edit changes its arguments.")
    return None


def _edit_arguments(pending: Pending, read: Read) -> Mapping[str, Any] | None:
    line = read("arguments> ", json.dumps(dict(pending.arguments), ensure_ascii=False))
    try:
        arguments: object = json.loads(line or "")
    except ValueError as error:
        print(f"That is not JSON: {error}", file=sys.stderr)
        return None
    if not isinstance(arguments, dict):
        print("Arguments are a JSON object.", file=sys.stderr)
        return None
    return cast(dict[str, Any], arguments)


def _plain(text: str) -> str:
    """Remove control characters from a model's text, because they could control the terminal."""
    return "".join(letter for letter in text if letter.isprintable() or letter in "\n\t\u200d")


EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
HELP = """\
/image PATH          send a picture with the next message       /sound PATH        send a sound with it
/reasoning on|off|EFFORT                                        /system TEXT       another system message
/model NAME          another model, as in openai:gpt-6-luna     /tools             what the model may call
/new                 forget what was said                       /history           show what was said
/save [PATH]         keep the conversation                      /quit              leave (also Ctrl-D)
Ctrl-C stops the answer; at the prompt, a second one leaves."""


@dataclass(kw_only=True)
class ChatSetup:
    """The start values of the chat. `connect` returns the connection to a model by its name."""

    connection: Connection
    connect: Callable[[str], Awaitable[Connection]]
    system_message: str = ""
    tools: Sequence[Tool | Function | Toolset] = ()
    limits: Limits = field(default_factory=Limits)
    file: ConversationFile | None = None


class Terminal:
    """One conversation at a terminal or over a pipe. On a pipe, each line is a prompt and only answers are printed."""

    def __init__(self, setup: ChatSetup, loop_thread: LoopThread) -> None:
        self._setup, self._loop_thread = setup, loop_thread
        self._seals = Seals()
        self._options = Options()
        self._attachments: list[BinaryContent] = []
        self._state = setup.file.load() if setup.file is not None else ConversationState()
        self._tools: list[Tool | Function | Toolset] = list(setup.tools)
        self._open_sessions = AsyncExitStack()
        self._is_interactive = sys.stdin.isatty()
        self._interrupted = False
        self._failed = False
        self._agent = self._make_agent()

    def run(self) -> int:
        """Chat until the end of the input. Return the exit status: 130 after Ctrl-C, 1 if an answer failed."""
        if self._is_interactive:
            self._greet()
        try:
            self._loop_thread.wait(self._open_toolsets())
            if self._state.suspension is not None:
                self._say("This conversation waits for an answer.")
                self._answer_pending()
            while (line := self._read_line("> ")) is not None:
                if line.strip() and not self._execute(line.strip()):
                    break
        except KeyboardInterrupt:
            return 130
        except AgentError as error:
            print(error, file=sys.stderr)
            return 1
        finally:
            self._loop_thread.wait(self._open_sessions.aclose())
            self._loop_thread.wait(self._agent.aclose())
        return 1 if self._failed and not self._is_interactive else 0

    # Reading lines

    def _read_line(self, prompt: str, prefill: str = "") -> str | None:
        """Return the next line, or None at the end of the input. Raises KeyboardInterrupt for two Ctrl-C in a row."""
        while True:
            try:
                line = _read(prompt if self._is_interactive else "", prefill)
                self._interrupted = False
                return line
            except EOFError:
                if self._is_interactive:
                    print()
                return None
            except KeyboardInterrupt:
                if self._interrupted or not self._is_interactive:
                    print()
                    raise
                self._interrupted = True
                print("\n(Ctrl-C again, or Ctrl-D, leaves.)")

    def _execute(self, line: str) -> bool:
        """Execute a line. Return False to leave."""
        if not line.startswith("/"):
            self._ask(line)
            return True
        name, _, rest = line[1:].partition(" ")
        if name in ("quit", "exit"):
            return False
        command = self._commands().get(name)
        try:
            if command is None:
                raise InputError(f"There is no command /{name}; /help has them all.")
            command(rest.strip())
        except (AgentError, OSError) as error:
            print(error, file=sys.stderr)
            self._failed = True
        return True

    def _commands(self) -> Mapping[str, Callable[[str], None]]:
        return {
            "help": lambda _: print(HELP),
            "image": lambda path: self._attach(Image.from_path(_path(path))),
            "sound": lambda path: self._attach(Audio.from_path(_path(path))),
            "reasoning": self._reasoning,
            "tools": self._list_tools,
            "model": self._model,
            "system": self._system,
            "new": self._new,
            "history": self._history,
            "save": self._save_as,
        }

    # Running

    def _ask(self, text: str) -> None:
        prompt: list[str | BinaryContent] = [text, *self._attachments]
        try:
            run = self._agent.run(
                prompt if self._attachments else text,
                context=self._state.context,
                options=self._options,
                journal=self._setup.file and self._setup.file.journal(self._state.context),
            )
        except AgentError as error:
            print(error, file=sys.stderr)
            self._failed = True
            return
        self._attachments.clear()
        self._follow(run)
        self._answer_pending()

    def _follow(self, run: Run) -> None:
        """Show the run, stop it at Ctrl-C, and store its result."""

        async def show_run() -> RunResult:
            async for response in run:
                display(response)
            return await run

        def stop() -> None:
            self._interrupted = True
            run.cancel("user_request")

        result = self._loop_thread.wait(show_run(), stop)
        if run.responses and run.responses[-1].type in ("output_text", "reasoning"):
            print(flush=True)
        if result.finish_reason not in ("error", "limit") and result.note.detail:
            self._say(result.note.detail)
        self._failed |= result.finish_reason == "error"
        suspension = self._seals.open(result.suspension) if result.suspension is not None else None
        self._set_state(ConversationState(result.context, suspension))
        if result.finish_reason == "cancelled" and not self._is_interactive:
            raise KeyboardInterrupt

    def _answer_pending(self) -> None:
        """Ask the questions of the suspended run and resume it. Without an answer it stays suspended."""
        while (suspension := self._state.suspension) is not None:
            reply: dict[str, str | Approve | Refuse] = {}
            for pending in suspension.pending:
                answer = ask(pending, self._read_line)
                if answer is None:
                    self._failed = True
                    self._say("Nothing was answered; the run stays suspended.")
                    return
                reply[pending.call_id] = answer
            try:
                run = self._agent.resume(suspension, reply)
                self._follow(run)
            except AgentError as error:
                print(error, file=sys.stderr)
                self._failed = True
                return

    # Commands

    def _attach(self, part: BinaryContent) -> None:
        self._attachments.append(part)
        self._say(f"{part.media_type}, {len(part.data)} bytes: it goes with the next message.")

    def _reasoning(self, wanted: str) -> None:
        if wanted not in ("on", "off", *EFFORTS):
            raise InputError(f"/reasoning takes on, off or one of {', '.join(EFFORTS)}.")
        chosen: Any = {"on": True, "off": False}.get(wanted, wanted)
        self._options = replace(self._options, reasoning=chosen)
        self._say(f"Reasoning: {wanted}.")

    def _list_tools(self, _: str) -> None:
        for tool in self._agent.tools.values():
            # The library adds summary tags if a docstring has more than a summary.
            text = (tool.definition.description or "").removeprefix("<summary>").split("</summary>")[0].strip()
            print(f"{tool.name}{' (asks first)' if tool.needs_approval else ''}: {text.partition(chr(10))[0]}")
        if not self._agent.tools:
            print("There are no tools.")

    def _model(self, name: str) -> None:
        if not name:
            self._say(f"The model is {self._setup.connection.spec.id}.")
            return
        connection = self._loop_thread.wait(cast(Coroutine[Any, Any, Connection], self._setup.connect(name)))
        before, self._setup = self._agent, replace(self._setup, connection=connection)
        self._agent = self._make_agent()
        self._loop_thread.wait(before.aclose())
        self._say(f"The model is {connection.spec.id}.")

    def _system(self, text: str) -> None:
        self._setup = replace(self._setup, system_message=text)
        self._agent = self._make_agent()
        self._say("The system message is set." if text else "There is no system message any more.")

    def _new(self, _: str) -> None:
        self._attachments.clear()
        self._set_state(ConversationState())
        self._say("A new conversation.")

    def _history(self, _: str) -> None:
        for message in self._state.context.messages:
            for line in _prompts(message):
                print(f"> {line}")
            stamp = BubbleMarker()
            for piece in pieces_of(message):
                display(stamp(piece))
            print(flush=True)

    def _save_as(self, path: str) -> None:
        if path:
            self._setup = replace(self._setup, file=ConversationFile(_path(path)))
        if self._setup.file is None:
            raise InputError("Save it where? /save PATH")
        self._set_state(self._state)
        self._say(f"Kept in {self._setup.file.path}.")

    # Agent and toolsets

    def _make_agent(self) -> Agent:
        setup = self._setup
        return Agent(
            setup.connection,
            system_message=setup.system_message,
            tools=self._tools,
            limits=setup.limits,
            seals=self._seals,
        )

    async def _open_toolsets(self) -> None:
        """Open the toolsets once for the whole chat."""
        for at, item in enumerate(self._tools):
            if isinstance(item, Toolset):
                self._tools[at : at + 1] = list(await self._open_sessions.enter_async_context(item.session()))
        self._agent = self._make_agent()

    def _set_state(self, state: ConversationState) -> None:
        self._state = state
        if self._setup.file is not None:
            self._setup.file.save(state)

    def _greet(self) -> None:
        with suppress(ImportError):
            import_module("readline")  # gives input() a history and editing
        print(f"{self._setup.connection.spec.label}. /help says what can be typed; Ctrl-D leaves.", flush=True)
        if turns := sum(1 for message in self._state.context.messages for _ in _prompts(message)):
            print(f"The conversation goes on after {turns} {'turn' if turns == 1 else 'turns'}.", flush=True)

    def _say(self, sentence: str) -> None:
        """Print a message to people that is not an answer. Over a pipe it goes to stderr."""
        print(
            f"({sentence})" if self._is_interactive else sentence,
            file=sys.stdout if self._is_interactive else sys.stderr,
            flush=True,
        )


def _read(prompt: str, prefill: str) -> str:
    """Read a line of input. If the terminal can, `prefill` is an editable start. Raises EOFError."""
    readline = sys.modules.get("readline")
    if not prefill or readline is None:
        return input(prompt)
    readline.set_startup_hook(lambda: readline.insert_text(prefill))
    try:
        return input(prompt)
    finally:
        readline.set_startup_hook()


def _path(text: str) -> Path:
    """Parse a path that people typed, possibly in quotes. Raises `InputError`."""
    if not (bare := text.strip().strip("\"'")):
        raise InputError("Which file? Its path goes after the command.")
    return Path(bare).expanduser()


def _prompts(message: ModelMessage) -> Sequence[str]:
    """Return the user's texts in this message, with media as their type; none of one that steered, a response."""
    if not isinstance(message, ModelRequest) or steered_text(message) is not None:
        return ()
    texts: list[str] = []
    for part in message.parts:
        if isinstance(part, UserPromptPart):
            items = [part.content] if isinstance(part.content, str) else part.content
            texts.append(" ".join(item if isinstance(item, str) else f"[{_kind(item)}]" for item in items))
    return texts


def _kind(item: object) -> str:
    return item.media_type if isinstance(item, BinaryContent) else type(item).__name__
