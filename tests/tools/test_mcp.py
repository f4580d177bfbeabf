"""MCP servers as toolsets: the SDK's own server as a child process and over HTTP, healthy and failing."""

import asyncio
import json
import logging
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import anyio
import psutil
import pytest
from pydantic_ai.messages import BinaryContent, ToolCallPart, ToolReturnPart

from agent import Agent, Approve, Refuse, RunResult
from agent.errors import ToolError
from agent.events import ToolOutput
from agent.settings import ROOT
from agent.tools import mcp
from agent.tools.function_tools import Tool, Toolset, execute
from agent.tools.mcp import McpServer
from agent.tools.mcp_sdk import IS_FIRST
from tests.support.fakes import Call, FakeConnection, Step, Words
from tests.support.mcp_server import PNG, WAV
from tests.support.ports import free_port

pytestmark = pytest.mark.slow


def things(part: str = "stdio", **more: Any) -> McpServer:
    return McpServer.stdio(sys.executable, ["-m", "tests.support.mcp_server", part], name="things", cwd=ROOT, **more)


def script(code: str, **more: Any) -> McpServer:
    """Return a program that is no MCP server."""
    return McpServer.stdio(sys.executable, ["-ISc", f"import sys, time\n{code}"], name="things", **more)


MUTE = "print('thinking', file=sys.stderr, flush=True)\ntime.sleep(600)"


async def call(tools: Sequence[Tool], name: str, /, **arguments: Any) -> ToolReturnPart:
    known = {tool.name: tool for tool in tools}
    return await execute(known, ToolCallPart(f"things-{name}", arguments, "1"), timeout=60)


def gone(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


async def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - nobody tells when a process has gone
            await asyncio.sleep(0.02)


async def pid_of(tools: Sequence[Tool]) -> int:
    return json.loads((await call(tools, "surroundings")).content)["pid"]


# --- both transports --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Run a server over HTTP and yield its address."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.mcp_server", "http", str(port)], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}/mcp"
    try:
        until = time.monotonic() + 60
        while True:
            assert time.monotonic() < until
            assert process.poll() is None
            try:
                urlopen(url, timeout=5).close()
                break
            except HTTPError as answered:
                answered.close()
                break
            except OSError:
                time.sleep(0.05)
        yield url
    finally:
        process.kill()
        process.wait()


@pytest.fixture(params=["stdio", "http"])
def server(request: pytest.FixtureRequest) -> McpServer:
    if request.param == "stdio":
        return things(env={"TOKEN": "hush"})
    return McpServer.http(request.getfixturevalue("address"), name="things", headers={"X-Token": "hush"})


async def test_mcp_tools_become_agent_tools(server: McpServer) -> None:
    assert isinstance(server, Toolset)
    assert "hush" not in repr(server)
    async with server.session() as tools:
        told = next(tool for tool in tools if tool.name == "things-add").definition
        assert told.description == "Add two numbers."
        assert told.parameters_json_schema["properties"]["a"]["type"] == "integer"
        assert told.parameters_json_schema["required"] == ["a"]
        assert (await call(tools, "add", a=2, b=3)).content == "5"
        assert (await call(tools, "add", a=2)).content == "3"
        assert (await call(tools, "echo", text="ü\n" * 25_000)).content == "ü\n" * 25_000
        assert (await call(tools, "nothing")).outcome == "success"
        odd = next(tool for tool in tools if tool.name.startswith("things-an_odd"))
        assert (await call(tools, odd.name.removeprefix("things-"))).content == "odd"
        picture = BinaryContent(PNG, media_type="image/png")
        assert (await call(tools, "picture")).content == picture
        mixed = (await call(tools, "mixed")).content
        assert mixed == ["before", picture, BinaryContent(WAV, media_type="audio/wav"), "after"]


async def test_tool_refusal_is_an_error_for_model(server: McpServer) -> None:
    async with server.session() as tools:
        refused = await call(tools, "fail", city="Atlantis")
        assert refused.outcome == "failed"
        assert "there is no city Atlantis" in refused.content
        unfit = await call(tools, "add", a="many")
        assert unfit.outcome == "failed"
        assert "a" in unfit.content
        assert (await call(tools, "add", a=1)).content == "2"  # the session continues


async def test_call_times_out_and_others_continue(server: McpServer) -> None:
    quick = McpServer(server.where, name="things", timeout=1.0, tools=("nap", "add"))
    async with quick.session() as tools:
        late, fine = await asyncio.gather(call(tools, "nap", seconds=60), call(tools, "add", a=1))
        assert (late.outcome, late.content) == ("failed", "The tool took longer than 1 s and was given up.")
        assert fine.content == "2"
        assert (await call(tools, "add", a=1)).content == "2"


async def test_only_allowed_tools_are_taken(server: McpServer) -> None:
    few = McpServer(server.where, name="things", tools=("echo", "add"), needs_approval=("add",))
    async with few.session() as tools:
        assert [(tool.name, tool.needs_approval) for tool in tools] == [("things-echo", False), ("things-add", True)]


async def test_missing_wanted_tool_is_reported(address: str) -> None:
    for wrong in ({"tools": ("echo", "fly")}, {"needs_approval": ("fly",)}):
        with pytest.raises(ToolError, match=r"things has no tool 'fly'. It has: add, an.odd"):
            async with McpServer.http(address, name="things", **wrong).session():
                pass
    async with McpServer.http(address, name="things", tools=("echo",), needs_approval=True).session() as tools:
        assert tools[0].needs_approval


async def test_session_opens_and_closes_in_different_tasks(server: McpServer) -> None:
    session = server.session()
    tools = await asyncio.create_task(session.__aenter__())
    assert (await asyncio.create_task(call(tools, "add", a=1))).content == "2"
    await asyncio.create_task(session.__aexit__(None, None, None))
    late = await call(tools, "add", a=1)
    assert late.outcome == "failed"


async def test_agent_uses_mcp_tools(server: McpServer) -> None:
    connection = FakeConnection(
        [Step([Call("things-add", '{"a": 40, "b": 2}', "things-add")]), Step([Words("output_text", ["42"])])]
    )
    result = await Agent(connection, tools=[server]).ask("What is 40 + 2?")
    assert (result.finish_reason, result.text) == ("stop", "42")
    returned = connection.played.sent[1][-1].parts[0]
    assert isinstance(returned, ToolReturnPart)
    assert returned.content == "42"


# --- what a server asks, offers and tells -----------------------------------------------------------------------------


@pytest.fixture(params=["http", pytest.param("old", marks=pytest.mark.full)])
def asking(request: pytest.FixtureRequest) -> McpServer:
    """A server of the newest revision, and one that begins with a handshake, whose start takes a second."""
    if request.param == "http":
        return McpServer.http(request.getfixturevalue("address"), name="things")
    return things("old")


def calling(server: McpServer, *calls: tuple[str, str]) -> Agent:
    """Return an agent whose model makes these calls in its first step, and then says what it got."""
    made = [Call(f"things-{name}", arguments, f"{name}-{number}") for number, (name, arguments) in enumerate(calls)]
    return Agent(FakeConnection([Step(made)]), tools=[server])


def results_of(result: RunResult) -> list[str]:
    """Return the results that the model has read."""
    parts = [part for message in result.context.messages for part in message.parts]
    return [part.content for part in parts if isinstance(part, ToolReturnPart)]


@pytest.mark.parametrize("part", ["stdio", "old"])
async def test_question_of_server_suspends_the_run(part: str) -> None:
    agent = calling(things(part), ("book", '{"day": "Monday"}'))
    result = await agent.ask("Book.")
    assert result.finish_reason == "suspended"
    (pending,) = result.pending
    assert (pending.kind, pending.agent) == ("question", "things-book")
    assert pending.question == "Seats on Monday (How many seats?)"
    again = await agent.resume(result, "many")
    assert again.pending[0].question.endswith("It takes a whole number, not 'many'.")
    done = await agent.resume(again, "2")
    assert (done.finish_reason, results_of(done)) == ("stop", ["2 seats on Monday"])


async def test_refused_question_fails_the_call(asking: McpServer) -> None:
    agent = calling(asking, ("book", '{"day": "Monday"}'))
    done = await agent.resume(await agent.ask("Book."), Refuse("not now"))
    assert done.finish_reason == "stop"
    assert "seats on" not in results_of(done)[0]


async def test_each_field_of_a_form_is_a_question(asking: McpServer) -> None:
    agent = calling(asking, ("order", "{}"))
    result = await agent.ask("Order.")
    asked = {one.question: one for one in result.pending}
    assert {text: one.choices for text, one in asked.items()} == {
        "Your order (Dish)": ("soup", "cake"),
        "Your order (Warm)": ("Yes", "No"),
        "Your order (Note)": (),
    }
    replies: Any = dict(zip((one.call_id for one in asked.values()), ("cake", "no", Refuse()), strict=True))
    done = await agent.resume(result, replies)
    assert json.loads(results_of(done)[0]) == {"dish": "cake", "warm": False, "note": None}


async def test_approved_values_are_those_of_the_repeated_call() -> None:
    agent = calling(things(needs_approval=["book"]), ("book", '{"day": "Monday"}'))
    approval = await agent.ask("Book.")
    question = await agent.resume(approval, Approve({"day": "Friday"}))
    assert question.pending[0].question == "Seats on Friday (How many seats?)"
    done = await agent.resume(question, "3")
    assert results_of(done) == ['3 seats on Friday\n\n[The user changed the arguments to {"day": "Friday"}.]']


@pytest.mark.skipif(IS_FIRST, reason="version 1 does not say during which call a server asks")
async def test_calls_side_by_side_ask_for_themselves() -> None:
    agent = calling(things(), ("book", '{"day": "Monday"}'), ("book", '{"day": "Friday"}'), ("add", '{"a": 1}'))
    result = await agent.ask("Book both.")
    assert [one.question.split(" (")[0] for one in result.pending] == ["Seats on Monday", "Seats on Friday"]
    done = await agent.resume(result, {one.call_id: str(number) for number, one in enumerate(result.pending, 4)})
    assert results_of(done) == ["4 seats on Monday", "5 seats on Friday", "2"]


async def test_older_server_cannot_ask_during_several_calls() -> None:
    agent = calling(things("old"), ("book", '{"day": "Monday"}'), ("nap", '{"seconds": 600}'))
    run = agent.run("Book.")
    results: list[str] = []
    async for response in run:
        if response.type == "tool_call_result":
            results.append(response.content["content"])
            run.cancel()
    assert "make this call alone" in results[0]
    await wait_until(lambda: not mcp._serving)


async def test_nobody_is_asked_if_so_chosen(asking: McpServer) -> None:
    server = McpServer(asking.where, name="things", elicitation=False)
    result = await calling(server, ("book", '{"day": "Monday"}')).ask("Book.")
    assert result.finish_reason == "stop"
    assert "seats on" not in results_of(result)[0]
    async with asking.session() as tools:
        assert (await call(tools, "book", day="Monday")).outcome == "failed"


async def test_model_is_asked_only_if_allowed(asking: McpServer) -> None:
    agent = calling(McpServer(asking.where, name="things", sampling=True), ("poem", '{"topic": "tea"}'))
    result = await agent.ask("Write.")
    (pending,) = result.pending
    assert pending.kind == "approval"
    assert "wants to ask the model" in pending.sentence
    assert pending.arguments["text"] == "user: !text A poem about tea."
    refused = await agent.resume(result, Refuse())
    assert "user refused" in results_of(refused)[0]
    again = await agent.ask("Write.")
    assert again.finish_reason == "stop", "the fake model calls only once"


async def test_allowed_request_is_a_run_below(asking: McpServer) -> None:
    steps = [Step([Call("things-poem", '{"topic": "tea"}', "p")]), Step([Words("output_text", ["Warm leaves."])])]
    agent = Agent(FakeConnection(steps), tools=[McpServer(asking.where, name="things", sampling=True)])
    run = agent.resume(await agent.ask("Write."), Approve())
    below = [event async for event in run.events() if event.type == "child_event"]
    assert run.result is not None
    assert results_of(run.result) == ["Warm leaves."]
    assert below
    assert {event.tool_call_id for event in below} == {"p"}
    unasked = await calling(asking, ("poem", '{"topic": "tea"}')).ask("Write.")
    assert (unasked.finish_reason, unasked.pending) == ("stop", ())


async def test_prompts_are_for_people_too(asking: McpServer) -> None:
    [prompt] = await asking.list_prompts()
    assert (prompt.name, prompt.description) == ("review", "How to review a text.")
    assert [(one.name, one.required) for one in prompt.arguments] == [("text", True), ("tone", False)]
    assert await asking.get_prompt("review", {"text": "Ode"}) == "Review this in a kind tone: Ode"
    with pytest.raises(ToolError, match="things refused"):
        await asking.get_prompt("none", {})


async def test_resources_and_prompts_are_tools(asking: McpServer) -> None:
    server = McpServer(asking.where, name="things", tools=["add"], resources=True, prompts=True)
    async with server.session() as tools:
        read, get = (next(one for one in tools if one.name.endswith(end)) for end in ("read_resource", "get_prompt"))
        assert "- notes://all: All notes." in read.definition.description
        assert "- notes://{day}: The notes of a day." in read.definition.description
        assert "- review(text, tone?): How to review a text." in get.definition.description
        assert (await call(tools, "read_resource", uri="notes://all")).content == "Buy milk."
        assert (await call(tools, "read_resource", uri="notes://monday")).content == "Nothing on monday."
        assert (await call(tools, "read_resource", uri="other://x")).outcome == "failed"
        prompt = await call(tools, "get_prompt", name="review", arguments={"text": "Ode"})
        assert prompt.content == "Review this in a kind tone: Ode"
    async with asking.session() as tools:
        assert not [one.name for one in tools if one.name.endswith(("_resource", "_prompt"))]


@pytest.mark.parametrize("approved", [True, ("read_resource", "get_prompt")])
async def test_reading_and_prompts_can_need_approval(address: str, approved: Any) -> None:
    server = McpServer.http(
        address, name="things", tools=["add"], needs_approval=approved, resources=True, prompts=True
    )
    async with server.session() as tools:
        assert {tool.name: tool.needs_approval for tool in tools} == {
            "things-add": approved is True,
            "things-read_resource": True,
            "things-get_prompt": True,
        }


async def test_server_can_have_our_names_and_no_templates() -> None:
    server = things("desk", resources=True, needs_approval=["read_resource_of_server"])
    async with server.session() as tools:
        assert (await call(tools, "read_resource", a="mine")).content == "mine"
        assert (await call(tools, "read_resource_of_server", uri="notes://all")).content == "Buy milk."
        approved = [tool for tool in tools if tool.needs_approval]
        assert [tool.name for tool in approved] == ["things-read_resource_of_server"]
        assert "notes://{day}" not in approved[0].definition.description


async def test_unfit_arguments_are_told_before_the_request(address: str) -> None:
    async with McpServer.http(address, name="things", resources=True, prompts=True).session() as tools:
        assert (await call(tools, "read_resource")).content == "uri is missing"
        assert (await call(tools, "get_prompt", name=3)).content == "name is missing"
        unfit = await call(tools, "get_prompt", name="review", arguments="Ode")
        assert (unfit.outcome, unfit.content) == ("failed", "arguments is not an object")


def test_last_words_are_told_only_of_a_server_that_ended() -> None:
    words = deque(["took 3 ms"])
    assert "last words" not in things()._sentence(KeyError("contents"), words)
    assert "last words" in things()._sentence(anyio.ClosedResourceError(), words)


async def test_progress_is_an_event(asking: McpServer) -> None:
    run = calling(asking, ("climb", "{}")).run("Climb.")
    told = [event async for event in run.events() if event.type == "tool_output"]
    assert told == [ToolOutput("climb-0", "things-climb", "half way", 1, 2)]
    assert run.outputs == [("climb-0", "half way 1/2\n")], "the page shows it in the row of the call"


async def test_newest_revision_is_spoken(asking: McpServer) -> None:
    async with asking.session() as tools:
        is_old = IS_FIRST or (isinstance(asking.where, mcp.Command) and "old" in asking.where.args)
        revision = (await call(tools, "climb")).content
        assert revision == "2025-11-25" if is_old else revision == "2026-07-28"


# --- one transport only -----------------------------------------------------------------------------------------------


async def test_each_session_has_its_own_clean_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "hush hush")
    server = things(env={"TOKEN": "hush"})
    async with server.session() as one, server.session() as two:
        pids = {await pid_of(one), await pid_of(two)}
        assert len(pids) == 2
        env = json.loads((await call(one, "surroundings")).content)["env"]
    assert all(map(gone, pids))
    assert env["TOKEN"] == "hush"
    assert "PATH" in env
    assert "OPENAI_API_KEY" not in env


async def test_headers_go_with_every_request(address: str) -> None:
    async with McpServer.http(address, name="things", headers={"Authorization": "Bearer hush"}).session() as tools:
        assert json.loads((await call(tools, "surroundings")).content)["headers"]["authorization"] == "Bearer hush"


async def test_stderr_is_logged_and_stray_stdout_ignored(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with things("chatty").session() as tools:
        assert (await call(tools, "add", a=1)).content == "2"
        await call(tools, "die")
    assert "things: out of cheese" in caplog.text
    assert "Welcome to Things" in caplog.text


async def test_server_death_in_call_is_an_error_for_model() -> None:
    async with things().session() as tools:
        dead = await call(tools, "die")
        assert dead.outcome == "failed"
        assert dead.content.startswith("The MCP server things has ended. Its last words: ")
        assert dead.content.endswith("out of cheese")
        again = await call(tools, "add", a=1)
        assert again.outcome == "failed"
        assert "things has ended" in again.content


TROUBLE = {
    "never answers": (script(MUTE, start_seconds=5), r"things did not answer within 5 s. Its last words: thinking"),
    "ends at once": (
        script("sys.exit('no such file: /etc/things.toml')"),
        r"things has ended. Its last words: no such file: things.toml",
    ),
    "is not there": (
        McpServer.stdio("no-such-program", name="things"),
        r"cannot be started: 'no-such-program': No such",
    ),
    "is no server": (McpServer.stdio("true", name="things"), r"things has ended"),
    "nobody listens": (McpServer.http("http://127.0.0.1:9/mcp", name="things"), r"things cannot be reached"),
}


@pytest.mark.parametrize(("server", "sentence"), TROUBLE.values(), ids=TROUBLE)
async def test_unusable_server_gives_one_sentence(server: McpServer, sentence: str) -> None:
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(ToolError, match=sentence):
        async with server.session():
            pass
    assert {child.pid for child in psutil.Process().children() if not gone(child.pid)} <= before


async def test_run_with_unusable_server_ends_with_sentence() -> None:
    server = McpServer.stdio("no-such-program", name="things")
    result = await Agent(FakeConnection([]), tools=[server]).ask("Hello")
    assert result.finish_reason == "error"
    assert "'no-such-program'" in result.note.detail


# --- how it ends ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["stdio", "stubborn"])
async def test_cancelled_run_ends_its_server(part: str, tmp_path: Path) -> None:
    connection = FakeConnection(
        [
            Step([Call("things-surroundings", "{}", "things-surroundings")]),
            Step([Call("things-block", '{"seconds": 600}', "things-block")]),
        ]
    )
    run = Agent(connection, tools=[things(part)]).run("Wait.")
    seen: list[Any] = []
    async for response in run:
        seen.append(response)
        if response.type == "tool_call" and response.content["name"] == "things-block":
            run.cancel()
    pid = next(json.loads(one.content["content"])["pid"] for one in seen if one.type == "tool_call_result")
    assert run.result is not None
    assert run.result.finish_reason == "cancelled"
    await wait_until(lambda: gone(pid) and not mcp._serving)


async def test_session_cancelled_while_opening_leaves_nothing() -> None:
    before = {child.pid for child in psutil.Process().children()}

    async def use() -> None:
        async with script(MUTE).session():
            pass

    def children() -> set[int]:
        return {child.pid for child in psutil.Process().children() if not gone(child.pid)} - before

    work = asyncio.create_task(use())
    await wait_until(lambda: bool(children()))
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await wait_until(lambda: not children() and not mcp._serving)


HOLD = """
import asyncio, json, sys
from pathlib import Path
from agent.tools.mcp import McpServer

async def main():
    server = McpServer.stdio(
        sys.executable, ["-m", "tests.support.mcp_server", "stubborn"], name="things", cwd=Path.cwd()
    )
    async with server.session() as tools:
        known = {tool.name: tool for tool in tools}
        print(json.loads(await known["things-surroundings"]())["pid"], flush=True)
        work = asyncio.create_task(known["things-block"](seconds=600))
        if "over" in sys.argv:
            asyncio.current_task().cancel()
        await work

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a server has only its closed stdin to go by")
@pytest.mark.parametrize("how", [signal.SIGTERM, None], ids=str)
async def test_no_server_outlives_its_parent(how: signal.Signals | None) -> None:
    more = [] if how else ["over"]  # without a signal, everything is cancelled at the end, even the close
    process = subprocess.Popen(  # noqa: ASYNC220 - it is only started
        [sys.executable, "-c", HOLD, *more], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout
        pid = int(await asyncio.to_thread(process.stdout.readline))
        if how:
            assert not gone(pid)
            process.send_signal(how)
        await asyncio.to_thread(process.wait, 60)
        await wait_until(lambda: gone(pid))
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()
