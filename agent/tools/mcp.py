"""MCP servers as toolsets: opens a session with a server, offers its tools as ours, and closes the session.

With stdio, the server is a child process that ends with its session. With streamable HTTP, it is a URL from the owner.
"""

import asyncio
import base64
import ctypes
import hashlib
import json
import logging
import os
import re
import signal
import sys
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from shutil import which
from typing import Any, TypeVar, cast

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from pydantic_ai.messages import BinaryContent

from agent.errors import InputError, MissingExtra, ToolError, without_paths
from agent.fetch import tls_context
from agent.keyword_arguments import explains_arguments, explains_fields, shown
from agent.tools.function_tools import CALLER, PromptArgument, PromptInfo, Tool
from agent.tools.mcp_questions import Exchange, OpenExchanges

try:
    from agent.tools.mcp_sdk import (
        CONNECTION_CLOSED,
        METHOD_NOT_FOUND,
        Client,
        HttpError,
        SdkError,
        SessionMessage,
        connect,
        get_default_environment,
        http_transport,
        parse_message,
    )
except ImportError as error:
    raise MissingExtra("A tool from an MCP server", "mcp") from error

log = logging.getLogger(__name__)

T = TypeVar("T")
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


EXIT_SECONDS = 1.0
"""Seconds that the server has to end by itself after its stdin is closed, and again after SIGTERM."""
MAX_LINE = 64 * 1024 * 1024
MAX_LOG_LINE = 2_000
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True)
class Command:
    """A command to start. Of our environment it gets PATH, HOME and the like, and then `env`, which is never shown."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: Path | None = None


@asynccontextmanager
async def open_server(name: str, command: Command, last_words: deque[str]) -> AsyncGenerator[Streams]:
    """Yield the streams of a session. The server's stderr goes to the log, and its last lines to `last_words`.

    Raises `OSError` if the server cannot be started.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        command.command,
        *command.args,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env={**get_default_environment(), **command.env},
        cwd=command.cwd,
        start_new_session=True,  # Ctrl-C in the terminal reaches only us
        preexec_fn=_end_with_us if _libc else None,
    )
    try:
        async with _streams(name, process, last_words) as streams:
            yield streams
    finally:
        _signal(process, signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM)
        # Release the pipes that a grandchild still holds open; asyncio has no public way to do so.
        cast(asyncio.SubprocessTransport, process._transport).close()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


@asynccontextmanager
async def _streams(name: str, process: asyncio.subprocess.Process, last_words: deque[str]) -> AsyncGenerator[Streams]:
    assert process.stdin
    assert process.stdout
    assert process.stderr
    read_writer, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, write_reader = anyio.create_memory_object_stream[SessionMessage](0)

    async def listen(stdout: asyncio.StreamReader) -> None:
        with read_writer, suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for line in _lines(stdout):
                if (message := _parse_line(name, line)) is not None:
                    await read_writer.send(message)

    async def speak(stdin: asyncio.StreamWriter) -> None:
        with write_reader, read_writer, suppress(ConnectionError):
            async for message in write_reader:
                stdin.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await stdin.drain()
        stdin.close()

    async def note(stderr: asyncio.StreamReader) -> None:
        async for line in _lines(stderr):
            if text := line.decode("utf-8", "replace").strip()[:MAX_LOG_LINE]:
                last_words.append(text)
                log.info("%s: %s", name, text)

    pumps = [asyncio.create_task(work) for work in (listen(process.stdout), speak(process.stdin), note(process.stderr))]
    try:
        yield read_stream, write_stream
    finally:
        read_stream.close()
        write_stream.close()  # `speak` sends the rest and closes stdin, which ends a server
        try:
            await _wait_for_exit(process)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)


async def _wait_for_exit(process: asyncio.subprocess.Process) -> None:
    """Wait for the end of the process, and enforce it with stronger and stronger signals."""
    for how in (None, signal.SIGTERM, signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM):
        if how is not None:
            _signal(process, how)
        with suppress(TimeoutError):
            async with asyncio.timeout(EXIT_SECONDS):
                while process.returncode is None:  # noqa: ASYNC110 - `wait` waits for pipes that a grandchild holds, too
                    await asyncio.sleep(0.01)
                return


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        if sys.platform == "win32":
            process.terminate()
        else:
            os.killpg(process.pid, number)


def _end_with_us() -> None:
    """Ask the kernel, in the child before it becomes the server, to kill it when the thread that started it ends."""
    assert _libc
    _libc.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


def _parse_line(name: str, line: bytes) -> SessionMessage | None:
    try:
        return parse_message(line)
    except ValueError:
        if line.strip():  # many servers print a greeting
            log.warning("%s wrote what is no message to its stdout: %.200r", name, line)
        return None


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the lines, however long. Stops at the end, or if one is longer than any valid message."""
    rest = bytearray()
    while (data := await stream.read(65536)) and len(rest) < MAX_LINE:
        first, *others = data.split(b"\n")
        rest += first
        if others:
            yield bytes(rest)
            *whole, last = others
            for line in whole:
                yield line
            rest = bytearray(last)
    if rest:
        yield bytes(rest)


LONGEST_NAME = 64
"""Characters of a tool's name; all providers accept this many."""
MAX_PAGES = 50
MAX_NAMED = 50
"""Resources and prompts that the description of their tool names."""

_serving: set[asyncio.Task[None]] = set()
"""Tasks of open sessions. Strong references, because the event loop holds tasks only weakly."""


@dataclass(frozen=True)
class HttpAddress:
    """The address of a server. The `headers`, such as Authorization, are never shown."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


@explains_fields
@dataclass(frozen=True)
class McpServer:
    """An MCP server and the tools to use from it; made by `McpServer.stdio` or `McpServer.http`.

    Its tools are named "name-tool". `tools` limits them to these, by the server's own names; None takes all. Calls of
    those in `needs_approval` (True: all) wait for approval. `timeout` is in seconds for each call, `start_seconds` for
    the start of a session.

    If a server asks people during a call (elicitation), the run is suspended with these questions, and the resumed run
    makes the call again and answers. With `elicitation=False` the server is told that nobody can be asked. With
    `sampling`, a server can also ask the model of the run: each request waits for approval, and is a run below. With
    `resources` and `prompts`, the model gets `read_resource` and `get_prompt`, which can need approval, too. Their
    names end with "_of_server" if the server has tools of these names.
    """

    where: Command | HttpAddress
    _: KW_ONLY
    name: str
    tools: Sequence[str] | None = None
    needs_approval: Sequence[str] | bool = ()
    timeout: float = 60.0
    start_seconds: float = 30.0
    elicitation: bool = True
    sampling: bool = False
    resources: bool = False
    prompts: bool = False

    def __post_init__(self) -> None:
        if not isinstance(cast(object, self.where), Command | HttpAddress):
            raise InputError(
                "an MCP server is made by McpServer.stdio(command, [argument, ...], name=...) or "
                f"McpServer.http(url, name=...), not of {shown(self.where)}"
            )
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,31}", self.name):
            raise InputError(
                f"an MCP server's name is at most 32 letters, digits, - and _, with a letter first; not {self.name!r}"
            )

    @classmethod
    @explains_arguments
    def stdio(
        cls,
        command: str,
        args: Sequence[str] = (),
        *,
        name: str,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        **more: Any,
    ) -> "McpServer":
        """Return a server to start as a program. It sees only PATH, HOME and the like of our environment, and `env`."""
        if not isinstance(cast(object, command), str) or _is_whole_line(command, cwd):
            words = command.split() if isinstance(cast(object, command), str) else ["npx", "server"]
            meant = f"stdio({words[0]!r}, {words[1:]!r})"
            raise InputError(f"a program and its arguments are two arguments: {meant}, not {command!r}")
        return cls(Command(command, tuple(args), env or {}, Path(cwd) if cwd else None), name=name, **more)

    @classmethod
    @explains_arguments
    def http(cls, url: str, *, name: str, headers: Mapping[str, str] | None = None, **more: Any) -> "McpServer":
        """Return a server at `url` with streamable HTTP. `headers` are sent with every request."""
        if not str(url).startswith(("http://", "https://")):
            raise InputError(f"the URL of an MCP server begins with https:// or http://, not {str(url)[:40]!r}")
        return cls(HttpAddress(url, headers or {}), name=name, **more)

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[Sequence[Tool]]:
        """Open a session and yield its tools. Raises `ToolError` with a sentence if it cannot be opened."""

        async def read(session: _Session) -> Sequence[Tool]:
            return [tool async for tool in self._tools(session)]

        async with self._opened(read) as tools:
            yield tools

    async def list_prompts(self) -> Sequence[PromptInfo]:
        """Return what the server says of its prompts. Raises `ToolError` with a sentence if it cannot be asked."""

        async def read(session: _Session) -> Sequence[PromptInfo]:
            return [_prompt_info(one) for one in await _list(session.client, "list_prompts", "prompts")]

        async with self._opened(read) as found:
            return found

    async def get_prompt(self, name: str, arguments: Mapping[str, str]) -> str:
        """Return the text of a prompt with these arguments. Raises `ToolError` with a sentence if it is refused."""

        async def read(session: _Session) -> str:
            result = await session.client.request("get_prompt", name, dict(arguments))
            contents = _contents({"content": [one["content"] for one in result["messages"]]})
            return "\n\n".join(one for one in contents if isinstance(one, str))

        async with self._opened(read) as text:
            return text

    @asynccontextmanager
    async def _opened(self, read: "Callable[[_Session], Awaitable[T]]") -> AsyncGenerator[T]:
        """Open a session and yield what is read of it first."""
        # The client must be closed in the task that opened it, but each caller of the session can be another task.
        ready: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        closing = asyncio.Event()
        serving = asyncio.create_task(self._serve(read, ready, closing), name=f"MCP server {self.name}")
        _serving.add(serving)
        serving.add_done_callback(_serving.discard)
        try:
            yield await ready
        finally:
            closing.set()
            if not ready.done() or ready.cancelled():
                serving.cancel()
            await asyncio.wait([serving])

    async def _serve(
        self, read: "Callable[[_Session], Awaitable[T]]", ready: asyncio.Future[T], closing: asyncio.Event
    ) -> None:
        """Hold a session open until `closing` is set. Never raises: whoever waits for `ready` gets the failure."""
        last_words: deque[str] = deque(maxlen=20)
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self.start_seconds):
                    exchanges = OpenExchanges()
                    client = await self._connect(stack, last_words, exchanges)
                    found = await read(_Session(client, exchanges, last_words))
                if not ready.done():
                    ready.set_result(found)
                await closing.wait()
        except BaseException as failure:
            if not ready.done():
                ready.set_exception(ToolError(self._sentence(failure, last_words)))
            elif isinstance(failure, Exception):
                log.warning("%s", self._sentence(failure, last_words), exc_info=True)
            if isinstance(failure, asyncio.CancelledError):
                raise

    async def _connect(self, stack: AsyncExitStack, last_words: deque[str], exchanges: OpenExchanges) -> Client:
        """Return a client that can make requests. The stack closes everything that it uses."""
        match self.where:
            case Command() as command:
                transport = open_server(self.name, command, last_words)
            case HttpAddress(url, headers):
                transport = await http_transport(stack, url, headers, await asyncio.to_thread(tls_context))
        return await connect(
            stack,
            transport,
            exchanges.elicit if self.elicitation else None,
            exchanges.sample if self.sampling else None,
        )

    async def _tools(self, session: "_Session") -> "AsyncGenerator[Tool]":
        """Yield the wanted tools as ours. Raises `ToolError` if the server lacks one of them."""
        listed = {tool["name"]: tool for tool in await _list(session.client, "list_tools", "tools")}
        wanted = list(listed) if self.tools is None else self.tools
        ours = {
            _free(name, listed): make
            for name, make, is_wanted in (
                ("read_resource", self._resource_tool, self.resources),
                ("get_prompt", self._prompt_tool, self.prompts),
            )
            if is_wanted
        }
        approved = [*wanted, *ours] if self.needs_approval is True else self.needs_approval or ()
        for name in [one for one in (*wanted, *(set(approved) - ours.keys())) if one not in listed]:
            known = ", ".join(sorted(listed)) or "none"
            raise ToolError(f"The MCP server {self.name} has no tool {name!r}. It has: {known}.")
        for name in wanted:
            yield self._own_tool(session, listed[name], name in approved)
        for name, make in ours.items():
            yield await make(session, name, name in approved)

    def _own_tool(self, session: "_Session", described: dict[str, Any], needs_approval: bool) -> Tool:
        async def request(exchange: Exchange) -> Any:
            given, told = dict(exchange.arguments), exchange.tell_progress
            result = await session.client.request("call_tool", described["name"], given, progress_callback=told)
            if result.get("isError"):
                raise ToolError("\n".join(filter(None, map(str, _contents(result)))) or "The tool failed.")
            return _value(result)

        text = described.get("description") or described.get("title") or ""
        return self._tool(session, described["name"], text, described["inputSchema"], request, needs_approval)

    async def _resource_tool(self, session: "_Session", name: str, needs_approval: bool) -> Tool:
        """Return the tool that reads resources. Its description names them."""
        found = await _list(session.client, "list_resources", "resources")
        try:
            templates = await _list(session.client, "list_resource_templates", "resourceTemplates")
        except SdkError as refused:
            if refused.error.code != METHOD_NOT_FOUND:
                raise
            templates = []
        named = [_named(one.get("uri") or one["uriTemplate"], one) for one in [*found, *templates]]

        async def request(exchange: Exchange) -> Any:
            result = await session.client.request("read_resource", _text(exchange.arguments, "uri"))
            blocks = [{"type": "resource", "resource": one} for one in result["contents"]]
            return _value({"content": blocks})

        text = f"Read a resource of {self.name}. Braces in an address stand for a value. It has:\n{_few(named)}"
        schema = _schema(uri="The address of the resource.")
        return self._tool(session, name, text, schema, request, needs_approval)

    async def _prompt_tool(self, session: "_Session", name: str, needs_approval: bool) -> Tool:
        """Return the tool that gets prompts. Its description names them and their arguments."""
        found = await _list(session.client, "list_prompts", "prompts")

        def line(prompt: dict[str, Any]) -> str:
            names = [f"{one['name']}{'' if one.get('required') else '?'}" for one in prompt.get("arguments") or ()]
            return _named(f"{prompt['name']}({', '.join(names)})", prompt)

        async def request(exchange: Exchange) -> Any:
            name = _text(exchange.arguments, "name")
            given: object = exchange.arguments.get("arguments") or {}
            if not isinstance(given, dict):
                raise ToolError("arguments is not an object")
            texts = {
                key: value if isinstance(value, str) else json.dumps(value)
                for key, value in cast("dict[str, Any]", given).items()
            }
            result = await session.client.request("get_prompt", name, texts)
            return _value({"content": [one["content"] for one in result["messages"]]})

        text = f"Get instructions that {self.name} has prepared, and follow them. It has:\n{_few(map(line, found))}"
        schema = _schema(name="The name of the prompt.")
        schema["properties"]["arguments"] = {"type": "object", "additionalProperties": {"type": "string"}}
        return self._tool(session, name, text, schema, request, needs_approval)

    def _tool(
        self,
        session: "_Session",
        name: str,
        description: str,
        schema: dict[str, Any],
        request: "Callable[[Exchange], Awaitable[Any]]",
        needs_approval: bool,
    ) -> Tool:
        """Return a tool that makes the request. If the server asks people meanwhile, the run waits for them."""

        async def call(**arguments: Any) -> Any:
            exchange = Exchange(self.name, CALLER.get(), arguments)
            try:
                with session.exchanges.during(exchange):
                    value = await request(exchange)
            except Exception as failure:
                if not exchange.questions:
                    raise ToolError(self._sentence(failure, session.last_words)) from failure
                value = ""
            if exchange.questions:
                exchange.suspend()
                return ""
            return value

        return Tool(
            call,
            fit_name(self.name, name),
            self.timeout,
            needs_approval=needs_approval,
            schema=schema,
            description=description,
        )

    def _sentence(self, failure: BaseException, last_words: deque[str]) -> str:
        leaf = _leaf(failure)
        match leaf:
            case ToolError():
                return str(leaf)
            case TimeoutError():
                problem = f"did not answer within {self.start_seconds:g} s"
            case asyncio.CancelledError():
                return f"The MCP server {self.name} was given up."
            case FileNotFoundError() | PermissionError() if isinstance(self.where, Command):
                problem = f"cannot be started: {Path(self.where.command).name!r}: {leaf.strerror}"
            case anyio.ClosedResourceError() | anyio.BrokenResourceError():
                problem = "has ended"
            case SdkError() if leaf.error.code == CONNECTION_CLOSED:
                problem = "has ended"
            case SdkError():
                return f"The MCP server {self.name} refused: {leaf.error.message}"
            case HttpError():
                problem = f"cannot be reached: {leaf or type(leaf).__name__}"
            case _:
                what = f"{type(leaf).__name__}: {without_paths(str(leaf))}"
                return f"The MCP server {self.name} answered with what cannot be used: {what}."
        why = f" Its last words: {without_paths(last_words[-1])}" if last_words else ""
        return f"The MCP server {self.name} {problem}.{why}"


def _is_whole_line(command: str, cwd: str | Path | None) -> bool:
    """Return True for a command with its arguments. The path of a program can have spaces, too."""
    first, *rest = command.split() or [""]
    return bool(rest) and not Path(cwd or "", command).exists() and (os.sep not in first or which(first) is not None)


def fit_name(server: str, tool: str) -> str:
    """Return a tool's name with its server's in front, in a form that all providers take, different for each tool."""
    name = f"{server}-{tool}"
    fit = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    if fit == name and len(name) <= LONGEST_NAME:
        return name
    return f"{fit[: LONGEST_NAME - 9]}-{hashlib.sha256(tool.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True)
class _Session:
    """An open session: its client, the calls in progress, and the last lines of the server's stderr."""

    client: Client
    exchanges: OpenExchanges
    last_words: deque[str]


async def _list(client: Client, method: str, name: str) -> list[dict[str, Any]]:
    """Return all that a server lists under this name, page by page."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        listed = await client.request(method, cursor=cursor)
        found += listed[name]
        cursor = listed.get("nextCursor")
        if not cursor:
            break
    return found


def _prompt_info(described: Mapping[str, Any]) -> PromptInfo:
    arguments = [
        PromptArgument(one["name"], one.get("description") or one.get("title") or "", bool(one.get("required")))
        for one in described.get("arguments") or ()
    ]
    about = described.get("description") or described.get("title") or ""
    return PromptInfo(described["name"], about, arguments)


def _free(name: str, taken: Container[str]) -> str:
    """Return the name, or a longer one if it is taken."""
    while name in taken:
        name += "_of_server"
    return name


def _text(arguments: Mapping[str, Any], name: str) -> str:
    """Return the argument. Raises `ToolError` if it is no text."""
    if not isinstance(value := arguments.get(name), str) or not value:
        raise ToolError(f"{name} is missing")
    return value


def _named(name: str, described: Mapping[str, Any]) -> str:
    """Return a line about a resource or a prompt."""
    return f"- {name}: {described.get('description') or described.get('title') or described['name']}"


def _few(lines: Iterable[str]) -> str:
    listed = list(lines)
    more = [f"- and {len(listed) - MAX_NAMED} more"] if len(listed) > MAX_NAMED else []
    return "\n".join([*listed[:MAX_NAMED], *more]) or "- nothing now"


def _schema(**described: str) -> dict[str, Any]:
    """Return the schema of an object with these texts."""
    texts = {name: {"type": "string", "description": text} for name, text in described.items()}
    return {"type": "object", "properties": texts, "required": list(texts)}


def _value(result: dict[str, Any]) -> Any:
    """Return the result for the model: one text if there is nothing else, else texts, pictures and sound in order."""
    contents = list(_contents(result))
    if not contents and (structured := result.get("structuredContent")) is not None:
        return json.dumps(structured, ensure_ascii=False)
    if all(isinstance(one, str) for one in contents):
        return "\n".join(map(str, contents))
    return contents[0] if len(contents) == 1 else contents


def _contents(result: dict[str, Any]) -> "Iterator[str | BinaryContent]":
    for block in result["content"]:
        yield _content(block)


def _content(block: dict[str, Any]) -> "str | BinaryContent":
    match block:
        case {"type": "image" | "audio", "data": data, "mimeType": kind}:
            return _binary(data, kind)
        case {"type": "resource_link", "name": name, "uri": uri}:
            return f"{name}: {uri}"
        case {"type": "resource", "resource": {"blob": data, **more}}:
            return _binary(data, more.get("mimeType") or "application/octet-stream")
        case {"type": "resource", "resource": {"text": text}} | {"text": text}:
            return text
        case _:
            return f"({block.get('type')} that cannot be read)"


def _binary(coded: str, kind: str) -> "str | BinaryContent":
    try:
        return BinaryContent(base64.b64decode(coded, validate=True), media_type=kind)
    except ValueError:
        return f"({kind} that cannot be read)"


def _leaf(failure: BaseException) -> BaseException:
    """Return the first cause inside nested exception groups, which task groups raise."""
    while isinstance(failure, BaseExceptionGroup):
        failure = cast("BaseExceptionGroup[BaseException]", failure).exceptions[0]
    return failure
