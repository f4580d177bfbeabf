"""Correct programs and planted slips. pyright and mypy read them; nothing runs them.

Each ignore comment marks an error that its checker must find, because both report an ignore comment without an error.
"""
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_never, assert_type

from agent import (
    Agent,
    Chat,
    Compaction,
    Context,
    Image,
    Limits,
    Message,
    ModelMessage,
    Options,
    Part,
    Prompt,
    Response,
    Run,
    RunCancelled,
    RunOptions,
    RunResult,
    StateSnapshot,
    Tool,
    ToolCallContent,
    ToolResultContent,
    UserInputRequested,
    display,
    stream_to_display,
    tool,
)
from agent.events import ToolOutput
from agent.tools.mcp import McpServer

# --- notebooks --------------------------------------------------------------------------------------------------------


async def right_displays(agent: Agent, chat: Chat, result: RunResult) -> None:
    display(agent.run("Hello"))
    display(agent.run("Hello", output=bool))
    display(result)
    display(result.context)
    for response in chat.query("Hello"):
        display(response)
    assert_type(await stream_to_display(agent, "Hello"), RunResult)


async def wrong_displays(agent: Agent, chat: Chat) -> None:
    display("Hello")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    display(agent.ask("Hello"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    display(chat)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await display(agent.run("Hello"))  # type: ignore[func-returns-value,misc]  # pyright: ignore[reportGeneralTypeIssues]
    await stream_to_display("Hello", agent)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# --- MCP servers ------------------------------------------------------------------------------------------------------


async def right_servers(run: Run) -> Agent:
    async for event in run.events():
        if isinstance(event, ToolOutput):
            assert_type(event.total, float | None)
    server = McpServer.stdio("npx", ["-y", "server"], name="files", elicitation=False, sampling=True)
    assert_type(server, McpServer)
    return Agent("gpt", tools=[server, McpServer.http("https://example.org/mcp", name="web", resources=True)])


def wrong_servers() -> None:
    McpServer.stdio("npx")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    McpServer.http("https://example.org/mcp", {"Authorization": "a"}, name="web")  # type: ignore[misc,arg-type]  # pyright: ignore[reportCallIssue]
    McpServer(None, name="web")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# --- agents as tools --------------------------------------------------------------------------------------------------


def right_agents(agent: Agent) -> Agent:
    assert_type(agent.as_tool("Finds sources."), Tool)
    return Agent("gpt", tools=[agent.as_tool("Finds sources.", name="research", handoff=True)])


def wrong_agents(agent: Agent) -> None:
    agent.as_tool()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    agent.as_tool("Finds sources.", name=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    agent.as_tool("Finds sources.", hand_off=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Agent("gpt", tools=[agent])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


# --- conversations that fit -------------------------------------------------------------------------------------------


async def summarized(messages: Sequence[ModelMessage]) -> str:
    return f"{len(messages)} messages"


def right_compactions(context: Context) -> Agent:
    assert_type(context.without_summary(), Context)
    Compaction(at=20_000, keep=4, summarize=lambda messages: str(len(messages)))
    return Agent("gpt", compaction=Compaction(summarize=summarized))


def wrong_compactions() -> None:
    Compaction(0.85)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Compaction(keep="all")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Compaction(summarize=weather)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent("gpt", compaction=0.85)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# --- options ----------------------------------------------------------------------------------------------------------


async def right_options(agent: Agent, chat: Chat) -> None:
    assert_type(agent.run("Hello", context=Context(), reasoning="low", options=Options()), Run)
    assert_type(await agent.ask("Hello", temperature=1), RunResult)
    assert_type(await chat.ask("Hello", ignore_reasoning=True), RunResult)
    chat.query("Hello", max_tokens=9)
    chat.stream("Hello", journal=None)
    await agent.ask("Hello", model="gpt", tools=[weather], top_p=0.5, seed=1, stop=["."], timeout=3)
    agent.run("Hello", model=["gpt", agent.connection], stop=".", extra_body={"top_k": 3}, headers={"X-Team": "a"})
    kept: RunOptions = {"reasoning": False, "temperature": None}
    await stream_to_display(agent, "Hello", **kept)


async def misspelt_options(agent: Agent, chat: Chat) -> None:
    agent.run("Hello", temprature=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await agent.ask("Hello", resoning=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await agent.ask("Hello", ctx=Context())  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await chat.ask("Hello", max_token=9)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    chat.query("Hello", temprature=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    chat.stream("Hello", temprature=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await stream_to_display(agent, "Hello", temprature=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def wrong_values(agent: Agent, chat: Chat) -> None:
    agent.run("Hello", reasoning="off")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await agent.ask("Hello", max_tokens=1.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    chat.query("Hello", temperature="hot")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await agent.ask("Hello", seed="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    agent.run("Hello", headers={"X-Team": 1})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    chat.say("Hello", model=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    chat.say("Hello", tools=weather)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    chat.query("Hello", context=Context())  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# --- arguments --------------------------------------------------------------------------------------------------------


async def right_arguments(result: RunResult, picture: Path) -> None:
    agent = Agent("openai:gpt-6-luna", tools=["preset:currency", weather, shout], limits=Limits(steps=3))
    Agent(["openai:gpt-6-luna", agent.connection, "auto"])
    assert_type(agent.resume(result, "Yes.", model="gpt", tools=[], headers={"X-Team": "a"}), Run)
    assert_type(result.model, str)
    prompt: Prompt = ["What is this?", picture, Image.from_url("https://example.org/a.png")]
    assert_type(await agent.ask(prompt, context=result.context), RunResult)
    assert_type(await agent.resume(result, "Yes."), RunResult)
    messages: tuple[ModelMessage, ...] = result.context.messages
    assert_type(Context(messages=messages), Context)
    with Chat("openai:gpt-6-luna") as chat:
        assert_type(chat.messages, list[dict[str, Any]])


async def wrong_arguments(agent: Agent, result: RunResult) -> None:
    Agent(None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent(["openai:gpt-6-luna", None])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    Agent("openai:gpt-6-luna", tools=weather)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent("openai:gpt-6-luna", limits={"steps": 3})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await agent.ask("Hello", context=result)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    agent.resume(None, "Yes.")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Chat(None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# --- messages, events and models that stand in -----------------------------------------------------------------------


async def right_messages(agent: Agent, picture: Path) -> None:
    message = Message(role="user", contents=[Part.Text("What is this?"), Image.from_path(picture)])
    assert_type(message.role, str)
    await agent.ask([Message("system", "Be brief."), message])
    Chat(agent, enforce_single_run=True)


async def right_events(run: Run, agent: Agent) -> None:
    async for event in run.events():
        match event.type:
            case "text_delta" | "tool_call" | "run_ended":
                print(event)
            case _:
                continue
    taken = run.steer("Only hotels with a garden.")
    assert_type(await taken, bool)
    result = await Agent([agent.connection, "auto"]).ask("Hello", cache=True)
    assert_type(result.model, str)
    assert_type(result.usage.get("cached_tokens", 0), int)


async def wrong_messages(agent: Agent, run: Run) -> None:
    Message(contents="Hello")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Message("user", 3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Part.Text(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Chat(agent, enforce_single_run="yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    run.steer(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await agent.ask("Hello", cache="yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async for event in run.events():
        if event.type == "text":  # type: ignore[comparison-overlap]  # pyright: ignore[reportUnnecessaryComparison]
            print(event)


# --- the type of an answer --------------------------------------------------------------------------------------------


@dataclass
class Invoice:
    total: float


async def right_outputs(agent: Agent, chat: Chat, result: RunResult) -> None:
    invoice = await agent.ask("Hello", output=Invoice, temperature=1)
    assert_type(invoice, RunResult[Invoice])
    assert_type(invoice.checked().output, Invoice | None)
    if invoice.output is not None:
        assert_type(invoice.output.total, float)
    run = agent.run("Hello", output=list[Invoice])
    assert_type(run, Run[list[Invoice]])
    assert_type(run.partial_output, list[Invoice] | None)
    assert_type(await run, RunResult[list[Invoice]])
    assert_type((await agent.ask("Hello", output=bool)).output, bool | None)
    await agent.ask("Hello", output=Invoice | int)
    assert_type(agent.resume(result, "Yes.", output=Invoice), Run[Invoice])
    assert_type(chat.say("Hello", output=Invoice), RunResult[Invoice])
    assert_type(await chat.ask("Hello", output=Invoice), RunResult[Invoice])
    chat.query("Hello", output=Invoice)
    anything: RunResult = invoice
    print(anything.output)


async def wrong_outputs(agent: Agent, chat: Chat) -> None:
    await agent.ask("Hello", output=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    agent.run("Hello", output=Invoice(1))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    result = chat.say("Hello", output=Invoice)
    print(result.output.total)  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    other: RunResult[int] = result  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(other)


# --- responses and results --------------------------------------------------------------------------------------------


def narrowed(response: Response) -> str:
    if response.type == "output_text":
        assert_type(response.content, str)
    if response.type == "tool_call":
        assert_type(response.content, ToolCallContent)
        number: int = response.content["name"]  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        print(number)
        return response.content["name"]
    if response.type == "tool_call_result":
        assert_type(response.content, ToolResultContent)
        return response.content["content"]
    assert_type(response.content, str)
    return response.content


def matched(response: Response) -> str:
    match response.type:
        case "output_text" | "reasoning" | "user_message" | "error":
            return response.content
        case "tool_call" | "tool_call_result":
            return response.content["name"]
        case _:
            assert_never(response.type)


def not_narrowed(response: Response) -> str:
    if response.type == "text":  # type: ignore[comparison-overlap]  # pyright: ignore[reportUnnecessaryComparison]
        return ""
    return response.content  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


async def results(run: Run) -> str:
    assert_type(run.result, RunResult | None)
    print(run.result.text)  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    return (await run.finished()).text


async def events(run: Run) -> None:
    async for event in run.events():
        if isinstance(event, StateSnapshot):
            assert_type(event.context, Context)
        if isinstance(event, UserInputRequested):
            assert_type(event.record, str)
        if isinstance(event, RunCancelled):
            assert_type(event.reason, str)


# --- tools ------------------------------------------------------------------------------------------------------------


@tool
def weather(city: str, days: int = 1) -> str:
    """The weather of a city."""
    return f"Rain in {city} for {days} days."


@tool(timeout=5)
async def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()


async def right_calls() -> None:
    assert_type(weather("Paris", days=2), str)
    assert_type(await shout("Hello"), str)


async def wrong_calls() -> None:
    weather(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    weather("Paris", day=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await shout()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
