"""Mistakes that people make with the package: each gets one message that names what was meant, before any request."""

import asyncio
import inspect
import math
import pickle
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from openai.types.chat import ChatCompletionMessage
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic_ai.messages import BinaryContent, ModelRequest, UserPromptPart
from pydantic_core import SchemaError

import agent
from agent import (
    Agent,
    Approve,
    Audio,
    Chat,
    Compaction,
    ConfigError,
    Context,
    Endpoint,
    Image,
    InputError,
    Limits,
    Message,
    ModelSpec,
    Options,
    Part,
    Refuse,
    Seals,
    Telemetry,
    Tool,
    ask_user,
    connect,
    display,
    stream_to_display,
    tool,
)
from agent.conformance import examine_server
from agent.fetch import Guard
from agent.keyword_arguments import explains_arguments, name_written_here
from agent.tools.mcp import HttpAddress, McpServer
from tests.support import media_files
from tests.support.fakes import Act as StreamAct
from tests.support.fakes import Call, FakeConnection, Step
from tests.support.models import QWEN3

untyped = cast(Any, None)
"""The mistakes are type errors, too. Values of this type hide them from a checker."""

TOOL_DICT: Any = {"type": "function", "function": {"name": "weather", "parameters": {}}}
OPENAI_MESSAGE: Any = {"role": "user", "content": "Hello"}


def weather(city: str) -> str:
    """The weather of a city."""
    return f"Rain in {city}."


class NotPydantic:
    """A class of which pydantic knows nothing."""


def _takes_any(value: NotPydantic) -> str:
    """Take a value."""
    return str(value)


@dataclass
class Hands:
    """The things that a mistake can use. Agents and chats made with it have a model that records its requests."""

    folder: Path
    connection: FakeConnection = field(default_factory=lambda: FakeConnection([]))

    def __post_init__(self) -> None:
        self.connection.spec = replace(self.connection.spec, image=True)

    def agent(self, **more: Any) -> Agent:
        return Agent(self.connection, **more)

    def result(self) -> Any:
        return asyncio.run(Agent(FakeConnection([])).ask("Hello"))


Act = Callable[[Hands], Any]


def ask(prompt: Any = "Hello", **options: Any) -> Act:
    return lambda hands: asyncio.run(hands.agent().ask(prompt, **options))


def query(**options: Any) -> Act:
    def act(hands: Hands) -> None:
        with Chat(hands.agent()) as chat:
            list(chat.query("Hello", **options))

    return act


def _say_with_journal(hands: Hands) -> None:
    with Chat(hands.agent(), store="memory:") as chat:
        chat.say("Hello", journal=cast(Any, print))


def _follow_elsewhere(hands: Hands) -> None:
    """Await in another event loop a run that has begun and is not over."""
    hands.connection.steps = hands.connection.played.steps = [Step([StreamAct("hang")])]
    run, loop = hands.agent().run("Hello"), asyncio.new_event_loop()
    hands.connection.played.cancel = lambda: None

    async def begin() -> None:
        run.start()

    async def follow() -> None:
        await run

    loop.run_until_complete(begin())
    try:
        asyncio.run(follow())
    finally:
        run.cancel()
        loop.run_until_complete(run.finished())
        loop.close()


def given(make: Callable[..., object], *arguments: Any, **named: Any) -> Act:
    return lambda _: make(*arguments, **named)


def made(**more: Any) -> Act:
    return lambda hands: hands.agent(**more)


def chat(**more: Any) -> Act:
    return lambda hands: Chat(hands.agent(), **more)


def tools(value: Any) -> Act:
    return lambda hands: hands.agent(tools=value)


MISTAKES: dict[str, tuple[Act, str]] = {
    **{
        f"Agent({name}=)": (
            lambda hands, name=name: hands.agent(**{name: "x"}),
            rf"^Perhaps it is {meant}\. Agent has no argument {name!r}; it takes model, provider",
        )
        for name, meant in [("sytem_message", "system_message"), ("usage_limits", "limits")]
    },
    "Agent(max_turns=)": (made(max_turns=3), r"Agent\(model, limits=Limits\(steps="),
    "Agent(temperature=)": (made(temperature=0), r"ask\(prompt, temperature="),
    "Agent(x=)": (made(zzz=1), r"^Agent has no argument 'zzz'; it takes model, provider"),
    "Chat(session_id=)": (chat(session_id="a"), r"^Perhaps it is id\. Chat has no argument 'session_id'"),
    "Chat(instructions=)": (chat(instructions="a"), r"^instructions is given in another way: Agent\(model,"),
    "Limits(step=)": (given(Limits, step=3), r"^Perhaps it is steps\."),
    "Options(num_predict=)": (given(Options, num_predict=3), r"^Perhaps it is max_tokens\."),
    "Context(history=)": (given(Context, mesages=()), r"^Perhaps it is messages\."),
    "Agent()": (given(Agent), r"'model': write Agent\(model, provider=\.\.\., .*, \.\.\.\)\.$"),
    "Agent(system_message=[])": (made(system_message=["a"]), r"\(system_message=\['a'\]\): .* must be a text$"),
    "Agent(telemetry=True)": (made(telemetry=True), r"=True\): telemetry must be an object of the class Tele"),
    "Agent(guard='x')": (made(guard="x"), r"='x'\): guard must be an object of the class Guard$"),
    "Limits(10)": (given(Limits, 10), r"^too many positional arguments: write Limits\(steps=\.\.\."),
    "Context(list)": (given(Context, []), r"write Context\(session_id=\.\.\., messages="),
    "connect(name)": (given(connect, "gpt"), r"For the name of a model, write Agent\(model, provider="),
    "connect(spec, url)": (lambda hands: connect(hands.connection.spec, cast(Any, "http://a")), r"^connect takes a Mo"),
    "connect(model=)": (given(connect, model="gpt"), r"^model is given in another way: Agent\(model, prov"),
    "Endpoint(key=)": (given(Endpoint, "http://a", key="b"), r"^Perhaps it is api_key\."),
    "Seals(text)": (given(Seals, "secret"), r"^too many positional arguments: write Seals\(keys=\.\.\."),
    "Seals(secret=)": (given(Seals, secret="secret"), r"^Perhaps it is keys\."),
    "Seals(keys=text)": (given(Seals, keys="secret"), r'Seals\(keys=\{"1": secret\}\)$'),
    "Guard(allow_hosts=)": (given(Guard, allow_hosts=("a",)), r"^Perhaps it is allow\."),
    "Guard(allow=text)": (given(Guard, allow="10.0.0.1"), r'write Guard\(allow=\("10\.0\.0\.1",\)\)$'),
    "McpServer(command=)": (given(McpServer, command="a", name="b"), r"way: McpServer\.stdio\(command, \["),
    "McpServer(text, name=)": (given(McpServer, "npx", name="b"), r"^an MCP server is made by McpServer\.stdio\("),
    "Agent(systemPrompt=)": (made(systemPrompt="a"), r"^Perhaps it is system_message\."),
    "Agent(handoffs=)": (made(handoffs=[]), r'agent\.as_tool\("When to ask it\.", handoff=True\)'),
    "as_tool(tool_description=)": (
        lambda hands: cast(Any, hands.agent().as_tool)(tool_description="a"),
        r"^Perhaps it is description\.",
    ),
    "Chat(enforceSingleRun=)": (chat(enforceSingleRun=True), r"^Perhaps it is (enforce_)?single_run\."),
    "as_tool without its call": (lambda hands: hands.agent(tools=[hands.agent().as_tool]), r"tools=\[agent\.as_tool"),
    "@tool of a lambda": (given(tool, lambda city: city), r"a lambda has no name and .*: write a def"),
    "Part.Text(3)": (given(Part.Text, 3), r"^Part\.Text takes a text, not 3; pictures"),
    "run.cancel(3)": (lambda hands: hands.agent().run("Hello").cancel(cast(Any, 3)), r"write run\.cancel\(\)$"),
    "run.start() without a loop": (lambda hands: hands.agent().run("Hello").start(), r"^only a coroutine can start a"),
    "run.steer() without a loop": (lambda hands: hands.agent().run("Hello").steer("More."), r"^only a coroutine can"),
    "run of another loop": (lambda hands: _follow_elsewhere(hands), r"^this run began in another event loop: await it"),
    "examine_server(word)": (lambda _: asyncio.run(examine_server("localhost:8000/v1")), r"must begin with http://"),
    "Message(content=)": (given(Message, role="user", content="a"), r"^Perhaps it is contents\. Message has no"),
    "Message(contents=)": (given(Message, contents="a"), r"'role': write Message\(role, contents\)\.$"),
    "Message(3)": (given(Message, "user", 3), r"^Message\(contents=3\): contents must be a text, or a list$"),
    "Message([None])": (given(Message, "user", [None]), r"has no place for 'NoneType'$"),
    "Message(role='usr')": (lambda hands: ask(Message("usr", "a"))(hands), r"must be system, user, .* not 'usr'$"),
    "Part(text)": (given(Part, "a"), r'^a part of a text is Part\.Text\("\.\.\."\)'),
    "McpServer(text)": (given(McpServer, "a"), r"'name': write McpServer\(where, name=\.\.\., "),
    "McpServer.http(base_url=)": (given(McpServer.http, base_url="a", name="b"), r"^Perhaps it is url\."),
    "McpServer.http(name)": (given(McpServer.http, "a", name="b"), r"begins with https:// or http://, not 'a'$"),
    "McpServer.stdio(list)": (given(McpServer.stdio, ["npx", "a"], name="b"), r"stdio\('npx', \['serv"),
    "McpServer(elicitation=function)": (
        given(McpServer.http, "http://a", name="b", elicitation=print),
        r"elicitation must be True or False$",
    ),
    "McpServer(params=)": (lambda _: cast(Any, McpServer)(params={}), r"^params is given in another way:"),
    "McpServer.http(transport=)": (
        lambda _: cast(Any, McpServer.http)("http://a", name="b", transport="sse"),
        r"^transport is given in another way: McpServer\.http\(url, name=\.\.\.\), for streamable HTTP\.",
    ),
    "class of a toolset": (tools([McpServer]), r"not the class McpServer: make one, such as McpServer\(\.\.\.\)$"),
    "Compaction(threshold=)": (lambda _: cast(Any, Compaction)(threshold=1), r"^Perhaps it is at\."),
    "stream_to_display(text, agent)": (
        lambda _: asyncio.run(stream_to_display(cast(Any, "Hello"), cast(Any, 3))),
        r"takes an agent and a prompt, not 'Hello' and 3$",
    ),
    "display(agent)": (
        lambda _: display(cast(Any, Agent(FakeConnection([])))),
        r"write await stream_to_display\(agent, prompt\)$",
    ),
    "display(coroutine)": (lambda _: display(cast(Any, asyncio.sleep(0))), r"'sleep': write await before the call$"),
    "display(text)": (given(display, "a"), r"^display prints responses, not 'a': write print\(\.\.\.\)$"),
    "Refuse(message=)": (given(Refuse, message="a"), r"^Perhaps it is reason\."),
    "Approve(args=)": (given(Approve, args={}), r"^Perhaps it is arguments\."),
    "ModelSpec(name)": (given(ModelSpec, "a"), r"write ModelSpec\(id=\.\.\., name=.*, \.\.\.\)\.$"),
    "Image(path)": (given(Image, "a.png"), r"^write Image\.from_bytes\(\.\.\.\) or .*Image\.from_url\(\.\.\.\)$"),
    "Image.from_bytes(text)": (given(Image.from_bytes, "a.png"), r"not 'str'; from_path takes its path$"),
    "McpServer.stdio(line)": (given(McpServer.stdio, "npx a -y", name="b"), r"two arguments: stdio\('npx', \['a', '-y"),
    "Seals(ledger=text)": (given(Seals, ledger="sqlite:///x"), r"Ledger, .* Seals\(ledger=open_ledger\("),
    "Seals(seconds=1e300)": (given(Seals, seconds=1e300), r"1e\+300 is longer .*; None means"),
    "Image.from_url(ftp)": (given(Image.from_url, "ftp://a"), r"begins with https://, http:// or data:"),
    "Audio.from_bytes(media_type=)": (given(Audio.from_bytes, b"", media_type="a"), r"^Perhaps it is for"),
    "{type: input_text}": (ask({"type": "input_text", "text": "a"}), r"in OpenAI's format a part is \{'type': 'text',"),
    "{contents: ...}": (ask({"contents": "a"}), r"in OpenAI's format it is \{'role': 'user', 'content': \.\.\.\}$"),
    "ask(think=)": (ask(think=True), r"^Perhaps it is reasoning\."),
    "ask(input=)": (
        lambda hands: asyncio.run(hands.agent().ask(**cast(Any, {"input": "Hello"}))),
        r"^Perhaps it is prompt\. Agent\.ask has no argument 'input'",
    ),
    "resume(reply=)": (
        lambda hands: hands.agent().resume("x", "y", **cast(Any, {"jurnal": "z"})),
        r"^Perhaps it is journal\. Agent\.resume has",
    ),
    "@tool of a tool": (given(tool, ask_user), r"^tool 'tool': it is a tool already$"),
    "@tool of a partial": (given(tool, partial(weather, city="Rome")), r"has no name and no docstring of its own"),
    "@tool of an unbound method": (given(tool, Hands.result), r"Hands\.result is a method without its object"),
    "run(messages=)": (lambda hands: hands.agent().run(**cast(Any, {"messages": []})), r"^Perhaps it is prompt\."),
    '@tool("name")': (given(tool, "weather"), r"write @tool\(name='weather'\)$"),
    "@tool(requires_approval=)": (given(tool, requires_approval=True), r"^Perhaps it is needs_ap"),
    "Agent(base_url=) of an unknown model": (
        given(Agent, "my-model", base_url="http://127.0.0.1:9/v1"),
        r"Agent\('my-model', provider=\"vllm\", base_url=\.\.\.\)",
    ),
    "contents": (ask([{"role": "user", "contents": "a"}]), r"its text or parts in 'content', not in 'contents'$"),
    "parts": (ask([{"role": "user", "parts": [{"text": "a"}]}]), r"in 'content', not in 'parts'$"),
    "contents of an answer": (
        ask([OPENAI_MESSAGE, {"role": "assistant", "contents": "a"}, OPENAI_MESSAGE]),
        r"in 'content', not in 'contents'$",
    ),
    "message without role": (ask([{"content": "a"}]), r"needs a role: \{'role': 'user'"),
    "role of another library": (ask([{"role": "human", "content": "a"}]), r"not 'human': write 'user'$"),
    "from_json(list)": (given(Context.from_json, [OPENAI_MESSAGE]), r"not a list; .*\[\*messages, prompt\]"),
    "from_json(JSON of a list)": (given(Context.from_json, "[]"), r"a JSON list; .*\[\*messages, prompt\]"),
    "pickle": (lambda hands: pickle.dumps(hands.agent()), r"holds connections.* result\.context\.to_json\(\)"),
    "deepcopy": (lambda hands: deepcopy(hands.agent()), r"holds connections"),
    "pickle of a chat": (lambda hands: pickle.dumps(Chat(hands.agent())), r"Chat\(agent, store=\.\.\., id=chat\.id\)"),
    "ctx=": (ask(ctx=Context()), r"^ctx is given in another way: ask\(prompt, context=result\.context\)"),
    "temprature=": (ask(temprature=1), r"^Perhaps it is temperature\. There is no option 'temprature'"),
    "unknown model= on ask": (ask(model="my-model"), r"^.*'my-model'"),
    "model=3 on ask": (ask(model=3), r'a name such as "openai:gpt-6-luna" or .* not 3$'),
    "tools=function on ask": (ask(tools=weather), r"tools takes a list, not <function weather"),
    "api_key= on ask": (ask(api_key="a"), r"^api_key is given in another way: Agent\(model, provider"),
    "Agent([])": (given(Agent, []), r'^the list of models is empty: write Agent\(\["openai:gpt-6-luna", "auto"\]\)'),
    "Agent([None])": (given(Agent, [untyped]), r"not None; is a variable of the environment not set\?$"),
    "Agent([[...]])": (given(Agent, [["auto"]]), r"return value of connect\(\.\.\.\), not \['auto'\]$"),
    "name twice": (given(Agent, ["openai:gpt-6-luna", "auto", "openai/gpt-6-luna"]), r"^openai:gpt-6-luna is twice"),
    "auto twice": (given(Agent, ["auto", "openai:gpt-6-luna", "auto"]), r"^auto is twice in the list of models: a"),
    "connection twice": (lambda hands: Agent([hands.connection, hands.connection]), r"^fake:parts is twice in the"),
    "unknown name in a list": (lambda hands: Agent([hands.connection, "my-model"]), r"'my-model'"),
    "base_url= of a list": (given(Agent, ["vllm:a", "auto"], base_url="http://127.0.0.1:9/v1"), r"^base_url belongs"),
    "dollars for a list": (
        lambda hands: Agent(["openai:gpt-6-luna", hands.connection], limits=Limits(dollars=1)),
        r"^a limit in dollars cannot be kept: the price of Parts is not known$",
    ),
    "options= as a dict": (ask(options={"temperature": 1}), r"of the class Options, not \{'temperature': 1\}"),
    "context=result": (lambda hands: ask(context=hands.result())(hands), r"write context=result\.context$"),
    "context=result of a chat": (lambda hands: Chat(hands.agent(), context=hands.result()), r"context=result\.context"),
    "context= of a query": (query(context=Context()), r"a chat has its own context: write Chat\(agent, context="),
    "context=list": (ask(context=[OPENAI_MESSAGE]), r"agent\.ask\(\[\*messages, prompt\]\)$"),
    "Context(messages=[{...}])": (given(Context, messages=[OPENAI_MESSAGE]), r"^Context\(messages=\.\.\.\) takes"),
    "result in a prompt": (lambda hands: ask([hands.result(), "Go on."])(hands), r"pass context=result\.context"),
    "OpenAI tool dict": (tools([TOOL_DICT]), r"not the dict .* has no function to call\. Write tools=\[function\]"),
    "tools=fn": (tools(weather), r"tools takes a list, not <function weather .* write tools=\[\.\.\.\]$"),
    "tools=str": (tools("preset:currency"), r"tools takes a list, not 'preset:currency'"),
    "lambda": (tools([lambda city: city]), r"a lambda cannot be a tool.* write a function with def, type hints"),
    "class as a tool": (tools([Path]), r"not the class Path"),
    "None as a tool": (tools([None]), r'or a name such as "preset:currency", not None$'),
    "misspelt preset": (tools(["preset:curency"]), r"there is no preset 'curency' for a tool; known are .*currency"),
    "resume(None)": (lambda hands: hands.agent().resume(untyped, "x"), r"the suspension is None"),
    "resume(result) that has ended": (lambda hands: hands.agent().resume(hands.result(), "x"), r"not suspended, it"),
    "resume(context)": (lambda hands: hands.agent().resume(cast(Any, Context()), "x"), r"resume takes result\.susp"),
    "Chat(None)": (given(Chat, untyped), r"a chat takes an Agent or the name of a model, not None"),
    "store= as a path": (chat(store="chats.db", id="a"), r'^store takes a URL such as "sqlite:///chats\.db", .* not'),
    "store= of an unknown kind": (chat(store="mysql://host"), r"not 'mysql://host'$"),
    "store= with a password": (
        chat(store="postgresql+asyncpg://root:s3cret/p@ss@db/x"),
        r"not 'postgresql\+asyncpg://db/x'$",
    ),
    "store= with a password, without slashes": (chat(store="root:s3cret@db/x"), r"not 'root:db/x'$"),
    "limits= with a password": (
        made(limits={"tokens": "https://root:s3cret@db/x"}),
        r"Limits\(tokens='https://db/x'\)$",
    ),
    "base_url= with a password": (
        given(Agent, "vllm:a", base_url="ftp://root:s3cret@db/v1"),
        r"'ftp://db/v1' must begin .*'http://db/v1'",
    ),
    "id= without a store": (chat(id="a"), r'write Chat\(agent, store="sqlite:///'),
    "id= as a number": (chat(store="memory:", id=42), r'a text such as "customer-42", not 42$'),
    "empty id=": (chat(store="memory:", id=" "), r'a text such as "customer-42", not \' \'$'),
    "store= and context=": (chat(store="memory:", context=Context()), r"a chat takes a store or a context: the stored"),
    "journal= of a stored chat": (_say_with_journal, r"saves its messages itself: leave the journal out$"),
    "limits=dict": (made(limits={"steps": 3}), r"of the class Limits, not \{'steps': 3\}: write limits=Limits\(steps="),
    "Agent(None)": (given(Agent, untyped), r'a name such as "openai:gpt-6-luna" or .* not None; is a variable'),
    "Agent(spec)": (lambda hands: Agent(cast(Any, hands.connection.spec)), r"the return value of connect\(\.\.\.\),"),
    "Limits(steps=0)": (given(Limits, steps=0), r"^Limits\(steps=0\): steps must be a whole number from 1 on$"),
    "Limits(seconds=0)": (given(Limits, seconds=0), r"seconds must be a number above 0$"),
    "Limits(dollars=-1)": (given(Limits, dollars=-1), r"dollars must be a number from 0 on, or None$"),
    "seconds beyond all dates": (given(Seals, seconds=1e30), r"^seconds=1e\+30 is longer than a date can say;"),
    "path that is not there": (lambda hands: ask(hands.folder / "no.png")(hands), r"the file '.*no\.png' cannot be"),
    "path of a program": (lambda hands: ask(_file(hands, "a.bin", b"\x7fELF\xff"))(hands), r"a\.bin' is no picture,"),
    "image on 127.0.0.1": (
        ask(["See:", Image.from_url("http://127.0.0.1:8000/a.png")]),
        r"^127\.0\.0\.1:8000 is not on the public internet.* Image\.from_bytes .*"
        r'Agent\(\.\.\., guard=Guard\(allow=\("127\.0\.0\.1:8000",\)\)\)$',
    ),
    "iterator of messages": (
        given(Context, messages=iter([ModelRequest([UserPromptPart("Hello")])])),
        r"^Context\(messages=<list_iterator .*: messages must be a list$",
    ),
    "iterator of hosts": (given(Guard, allow=iter(["a.example"])), r"^Guard\(allow=<list_iterator .*: allow must be a"),
    "picture as a bytearray": (given(Image.from_bytes, bytearray(b"x")), r"^the picture is no picture"),
    "journal=print": (ask(journal=print), r"^journal must be an object with the method write\(message, note\), not <b"),
    "tool with a class of one's own": (tools([_takes_any]), r"^tool '_takes_any': .* schema for <class '.*NotPydantic"),
    "model of Ollama": (given(Agent, "llama3:8b"), r"for example ollama:llama3:8b\. "),
    "model of a file": (given(Agent, "./models/a.gguf"), r"for example llama\.cpp:a\.gguf\. "),
    "address as a model": (given(Agent, "https://a.example/v1"), r'for example Agent\("vllm:name", base_url="https'),
}


def _file(hands: Hands, name: str, data: bytes) -> Path:
    path = hands.folder / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_names_what_was_meant(name: str, tmp_path: Path) -> None:
    act, message = MISTAKES[name]
    hands = Hands(tmp_path)
    with pytest.raises((InputError, ConfigError), match=message) as refused:
        act(hands)
    assert hands.connection.played.sent == [], "a request was made"
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("Runner", "agent.ask(prompt)"),
        ("function_tool", "from agent import tool"),
        ("McpServer", "from agent.tools.mcp import McpServer"),
        ("SQLiteSession", 'Chat(agent, store="sqlite:///chats.db"'),
        ("HandedOver", "from agent.events import HandedOver"),
    ],
)
def test_import_of_another_name_says_what_to_write(name: str, written: str) -> None:
    with pytest.raises(ImportError, match=re.escape(written)):
        exec(f"from agent import {name}")
    with pytest.raises(ImportError, match="cannot import name 'nothing_such'"):
        exec("from agent import nothing_such")
    assert not hasattr(agent, "nothing_such")


def test_names_that_say_what_to_import_are_there() -> None:
    """Whatever a sentence says to import can be imported."""
    names = ("Runner", "function_tool", "McpServer", "HandedOver", "ChildEvent", "open_ledger", "open_store", "PROGRAM")
    names += ("AgentContext", "ModelRetry", "UsageLimits", "ImageContent", "examine_server", "ModelSettings", "Ledger")
    written = [name_written_here(name) for name in names]
    assert all(written)
    for line in written:
        if line.startswith("from "):
            exec(line)


FOR, ASYNC_FOR = r"is for `for`, without `await` and `async`: write ", r"is for `async for`: write "


async def _awaited(value: Any) -> None:
    await value


async def _iterated(value: Any) -> None:
    async for _ in value:
        pass


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda chat: asyncio.run(_awaited(chat.query("Hello"))), FOR + r"await chat\.ask\(prompt\)"),
        (lambda chat: asyncio.run(_iterated(chat.query("Hello"))), FOR + r"await chat\.ask\(prompt\)"),
        (lambda chat: asyncio.run(_awaited(chat.resume("Yes."))), FOR + r".*chat\.stream_resume\(reply\)"),
        (lambda chat: asyncio.run(_awaited(chat.stream("Hello"))), ASYNC_FOR + r".*chat\.stream\(prompt\)"),
        (lambda chat: list(chat.stream("Hello")), ASYNC_FOR + r".*chat\.query\(prompt\)$"),
        (lambda chat: list(chat.stream_resume("Yes.")), ASYNC_FOR + r".*chat\.resume\(reply\)$"),
    ],
)
def test_responses_say_how_they_are_read(tmp_path: Path, wrong: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message), Chat(Hands(tmp_path).agent()) as chat:
        wrong(chat)


@pytest.mark.parametrize("method", ["query", "stream", "resume", "stream_resume"])
def test_responses_that_nobody_reads_are_reported(tmp_path: Path, method: str) -> None:
    with Chat(Hands(tmp_path).agent()) as chat, pytest.warns(RuntimeWarning, match="never iterated, so nothing was"):
        getattr(chat, method)("Hello")


def test_tool_that_returns_a_picture_warns_of_nothing() -> None:
    def plot(title: str) -> Image:
        """Plot something."""
        return Image.from_bytes(media_files.picture("PNG"))

    assert tool(plot).definition.name == "plot"


METHODS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda agent: agent.run_sync, r"'run_sync': write await agent\.ask\(prompt\), or Chat\(agent\)\.say"),
    (lambda agent: agent.run_stream, r"async for response in agent\.run\(prompt\)$"),
    (lambda agent: cast(Any, Chat(agent)).steer, r"run\.steer\(text\)$"),
    (lambda agent: agent.run("Hello").output, r"\(await agent\.ask\(prompt, output=\.\.\.\)\)\.output$"),
    (lambda agent: agent.zzz, r"^'Agent' object has no attribute 'zzz'$"),
    (lambda agent: cast(Any, Chat(agent)).run, r"chat\.say\(prompt\)"),
    (lambda agent: agent.run("Hello").text, r"\(await agent\.ask\(prompt\)\)\.text$"),
    (lambda agent: asyncio.run(agent.ask("Hello")).content, r"'RunResult' object has no .*: write result\.text$"),
    (
        lambda agent: asyncio.run(agent.ask("Hello"))["text"],
        r"fields, not items such as \['text'\]: write result\.text$",
    ),
    (lambda agent: list(asyncio.run(agent.ask("Hello"))), r"write result\.text$"),
    (lambda _: cast(Any, Audio).from_url, r"^Audio has no 'from_url': write Audio\.from_bytes\(.* Audio\.from_path\("),
    (lambda _: cast(Any, Image).from_file, r"^Image has no 'from_file': write Image\.from_bytes\("),
    (lambda agent: list(agent.run("Hello")), r"or for response in Chat\(agent\)\.query\(prompt\)$"),
]


@pytest.mark.parametrize(("wrong", "message"), METHODS)
def test_method_of_another_library_names_ours(tmp_path: Path, wrong: Callable[[Any], Any], message: str) -> None:
    with pytest.raises((AttributeError, TypeError), match=message):
        wrong(Hands(tmp_path).agent())


WRONG_VALUES = (
    *(True, 1, 0, -1, 0.5, -0.5, math.nan, "3", "", b"x", None, [3], {"a": 3}, {3}, object(), Limits, len),
    iter([]),
)
MAKERS: dict[Callable[..., object], dict[str, Any]] = {
    Agent: {"model": FakeConnection([])},
    Chat: {"agent": Agent(FakeConnection([]))},
    connect: {"spec": QWEN3},
    Endpoint: {"base_url": "http://127.0.0.1:9/v1"},
    ModelSpec: {"id": "a", "name": "a", "label": "a", "provider": "openai"},
    Tool: {"function": weather, "name": "weather"},
    McpServer: {"where": HttpAddress("http://a"), "name": "a"},
    McpServer.stdio: {"command": "npx", "name": "a"},
    McpServer.http: {"url": "http://a", "name": "a"},
    Image.from_bytes: {"data": media_files.picture("PNG")},
    Audio.from_bytes: {"data": media_files.sound("wav")},
}
"""What people make objects with, and the arguments that it needs."""
NEEDING_NONE = (
    *(Limits, Guard, Seals, Telemetry, Options, Context, Approve, Refuse, tool),
    *(Image.from_path, Audio.from_path, Image.from_pillow, Image.from_url),
)


def taken(make: Callable[..., object]) -> list[inspect.Parameter]:
    made = make.__init__ if inspect.isclass(make) else make
    return [
        one
        for one in inspect.signature(made).parameters.values()
        if one.name != "self" and one.kind is not one.VAR_KEYWORD
    ]


def is_allowed(value: object, hint: Any) -> bool:
    """Return what pydantic says, which reads type hints in another way, and refuse numbers below 0."""
    try:
        one: TypeAdapter[Any] = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
        one.validate_python(value, strict=not isinstance(value, list | set))  # a list is taken for a tuple
    except ValidationError:
        return False
    except (PydanticUserError, SchemaError):  # a type that it does not know
        return value is None
    return not isinstance(value, int | float) or value >= 0


@pytest.mark.parametrize(
    ("make", "argument"),
    [(make, one) for make in (*MAKERS, *NEEDING_NONE) for one in taken(make)],
    ids=lambda one: getattr(one, "__qualname__", None) or one.name,
)
def test_wrong_value_is_refused_where_it_is_given(make: Callable[..., object], argument: inspect.Parameter) -> None:
    for value in WRONG_VALUES:
        given = {**MAKERS.get(make, {}), argument.name: value}
        try:
            made = make(value) if argument.kind is argument.POSITIONAL_ONLY else make(**given)
        except (InputError, ConfigError) as error:
            said = str(error)
        else:
            said = ""
            assert is_allowed(value, argument.annotation), (value, made)
        named = [argument.name, repr(value)[:20].lower(), type(value).__name__.lower()]
        assert any(word in said.lower() for word in named) or is_allowed(value, argument.annotation), (value, said)
        assert len(said) < 400


@pytest.mark.parametrize("error", [ValueError(), TypeError(), AttributeError(), OSError(), KeyError(), MemoryError()])
def test_wrong_value_hides_no_other_failure(error: Exception) -> None:
    @explains_arguments
    def make(count: int) -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        make(1)
    assert raised.value is error
    with pytest.raises((InputError, type(error))) as raised:
        make(cast(Any, "3"))
    if isinstance(error, ValueError | TypeError | AttributeError):
        assert (type(raised.value), raised.value.__cause__) == (InputError, error)
    else:
        assert raised.value is error


def test_error_inside_a_property_comes_through(tmp_path: Path) -> None:
    class Mine(Agent):
        @property
        def mine(self) -> str:
            return cast(Any, self.connection).nothing_here

    with pytest.raises(AttributeError, match="nothing_here"):
        _ = Mine(FakeConnection([])).mine


# --- what works -------------------------------------------------------------------------------------------------------


def sent(hands: Hands) -> list[Any]:
    """Return the parts of the last request's prompt."""
    last = hands.connection.played.sent[-1][-1]
    assert isinstance(last, ModelRequest)
    content = [part.content for part in last.parts if isinstance(part, UserPromptPart)][-1]
    return [content] if isinstance(content, str) else list(content)


def test_preset_is_a_tool(tmp_path: Path) -> None:
    agent = Hands(tmp_path).agent(tools=["preset:currency", weather])
    assert list(agent.tools) == ["currency_rates", "weather"]


async def test_result_can_be_resumed(tmp_path: Path) -> None:
    hands = Hands(tmp_path)
    hands.connection.played.steps = [Step([Call("ask_user", '{"question": "Which?"}', "q1")])]
    agent = hands.agent(tools=[ask_user])
    result = await agent.ask("Hello")
    assert result.finish_reason == "suspended"
    assert (await agent.resume(result, "That one.")).text == "done"


def test_chat_takes_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    with Chat("openai:gpt-6-luna") as chat:
        assert chat.agent.connection.spec.id == "openai:gpt-6-luna"


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "in a list"])
def test_path_in_a_prompt_is_read(tmp_path: Path, alone: bool) -> None:
    hands = Hands(tmp_path)
    path = _file(hands, "a.png", media_files.picture("PNG"))
    ask(path if alone else ["See:", path])(hands)
    picture = sent(hands)[-1]
    assert isinstance(picture, BinaryContent)
    assert (picture.data, picture.media_type) == (path.read_bytes(), "image/png")


def test_path_of_a_text_is_quoted(tmp_path: Path) -> None:
    hands = Hands(tmp_path)
    ask(["Read:", _file(hands, "a.md", "Café".encode())])(hands)
    assert sent(hands) == ["Read:", "a.md:\n```\nCafé\n```"]


def test_openai_message_object_is_a_message(tmp_path: Path) -> None:
    hands = Hands(tmp_path)
    answer = ChatCompletionMessage(role="assistant", content="Hi.")
    ask([OPENAI_MESSAGE, answer, "And now?"])(hands)
    assert [message.kind for message in hands.connection.played.sent[-1]] == ["request", "response", "request"]
    assert sent(hands) == ["And now?"]


def test_allowed_private_host_is_fetched_from(tmp_path: Path) -> None:
    run = Hands(tmp_path).agent(guard=Guard(allow=("127.0.0.1:8000",))).run(Image.from_url("http://127.0.0.1:8000/a"))
    assert run.refused is None
