"""A real MCP server for tests, built with the SDK: `python -m tests.support.mcp_server stdio`, or `http PORT`.

`stubborn` ignores a closed stdin and SIGTERM. `chatty` first prints a line that is no message. `old` knows only the
revisions of the protocol that begin with a handshake, as every server of version 1 does. `desk` has a tool named
`read_resource`, and no method that lists templates.
"""

import asyncio
import os
import signal
import sys
import time
from typing import Annotated, Any

from mcp.types import CreateMessageResult, SamplingMessage, TextContent
from pydantic import BaseModel, Field

try:
    from mcp.server.mcpserver import Audio, Context, Elicit, Image, MCPServer, Resolve, Sample
    from mcp.server.mcpserver.exceptions import ToolError

    IS_FIRST = False
except ImportError:  # version 1 of the SDK
    from mcp.server.fastmcp import Audio, Context, Image
    from mcp.server.fastmcp import FastMCP as MCPServer
    from mcp.server.fastmcp.exceptions import ToolError

    IS_FIRST = True

PNG = b"\x89PNG\r\n\x1a\n" + bytes(200_000)
WAV = b"RIFF\x24\x00\x00\x00WAVEfmt "

server: MCPServer = MCPServer("things", instructions="Things for tests.")


@server.tool()
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool()
def fail(city: str) -> str:
    """Refuse."""
    raise ToolError(f"there is no city {city}")


@server.tool()
def picture() -> Image:
    """Draw."""
    return Image(data=PNG, format="png")


@server.tool(structured_output=False)
def mixed() -> list[str | Image | Audio]:
    """Say, draw and sing."""
    return ["before", Image(data=PNG, format="png"), Audio(data=WAV, format="wav"), "after"]


@server.tool()
def nothing() -> None:
    """Say nothing."""


@server.tool()
def surroundings(ctx: Context) -> dict[str, object]:
    """Tell the process, its environment and the request's headers."""
    headers = getattr(ctx.request_context.request, "headers", None) if IS_FIRST else ctx.headers
    return {"pid": os.getpid(), "env": dict(os.environ), "headers": dict(headers or {})}


@server.tool()
async def nap(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "awake"


@server.tool()
def block(seconds: float) -> str:
    """Wait, deaf to everything."""
    time.sleep(seconds)
    return "done"


@server.tool()
def die() -> str:
    """End in the middle of a call."""
    print("out of cheese", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool(name="an.odd name/" + "x" * 80)
def odd() -> str:
    """Have a name that no provider takes."""
    return "odd"


# --- what a server asks ----------------------------------------------------------------------------------------------


class Seats(BaseModel):
    """What `book` asks."""

    seats: int = Field(description="How many seats?")


class Order(BaseModel):
    """What `order` asks."""

    dish: str = Field(json_schema_extra={"enum": ["soup", "cake"]})
    warm: bool
    note: str | None = None


def _poem_request(topic: str) -> dict[str, Any]:
    asked = SamplingMessage(role="user", content=TextContent(type="text", text=f"!text A poem about {topic}."))
    return {"messages": [asked], "max_tokens": 50, "system_prompt": "Be brief."}


if IS_FIRST:

    @server.tool()
    async def book(day: str, ctx: Context) -> str:
        """Book seats."""
        answer = await ctx.elicit(f"Seats on {day}", Seats)
        if answer.action != "accept":
            raise ToolError("not booked")
        return f"{answer.data.seats} seats on {day}"

    @server.tool()
    async def order(ctx: Context) -> str:
        """Order a dish."""
        answer = await ctx.elicit("Your order", Order)
        if answer.action != "accept":
            raise ToolError("not ordered")
        return answer.data.model_dump_json()

    @server.tool()
    async def poem(topic: str, ctx: Context) -> str:
        """Let the client's model write a poem."""
        return (await ctx.session.create_message(**_poem_request(topic))).content.text

    def revision(ctx: Context) -> str:
        """Return the revision of the protocol."""
        return str(ctx.session.client_params.protocolVersion)

else:

    async def ask_seats(day: str) -> Elicit[Seats]:
        """Ask how many."""
        return Elicit(f"Seats on {day}", Seats)

    async def ask_order() -> Elicit[Order]:
        """Ask what."""
        return Elicit("Your order", Order)

    async def ask_poem(topic: str) -> Sample:
        """Ask the model."""
        return Sample(**_poem_request(topic))

    @server.tool()
    async def book(day: str, wanted: Annotated[Seats, Resolve(ask_seats)]) -> str:
        """Book seats."""
        return f"{wanted.seats} seats on {day}"

    @server.tool()
    async def order(wanted: Annotated[Order, Resolve(ask_order)]) -> str:
        """Order a dish."""
        return wanted.model_dump_json()

    @server.tool()
    async def poem(topic: str, made: Annotated[CreateMessageResult, Resolve(ask_poem)]) -> str:
        """Let the client's model write a poem."""
        return made.content.text

    def revision(ctx: Context) -> str:
        """Return the revision of the protocol."""
        return str(ctx.protocol_version)


@server.tool()
async def climb(ctx: Context) -> str:
    """Tell how far it is, and which revision of the protocol it speaks."""
    await ctx.report_progress(1, 2, "half way")
    return revision(ctx)


@server.resource("notes://all", description="All notes.")
def notes() -> str:
    """Return the notes."""
    return "Buy milk."


@server.resource("notes://{day}", description="The notes of a day.")
def notes_of(day: str) -> str:
    """Return the notes of a day."""
    return f"Nothing on {day}."


@server.prompt()
def review(text: str, tone: str = "kind") -> str:
    """How to review a text."""
    return f"Review this in a {tone} tone: {text}"


async def serve_after_handshake() -> None:
    """Serve as version 2 of the SDK does after a handshake, and accept nothing without one."""
    from mcp.server.runner import serve_loop
    from mcp.server.stdio import stdio_server

    inner = server._lowlevel_server
    async with stdio_server() as (incoming, outgoing), inner.lifespan(inner) as state:
        await serve_loop(inner, incoming, outgoing, lifespan_state=state)


def become_desk() -> None:
    """Add a tool with the name of ours, and forget the templates."""

    @server.tool()
    def read_resource(a: str) -> str:
        """Say it again."""
        return a

    if IS_FIRST:
        from mcp.types import ListResourceTemplatesRequest

        del server._mcp_server.request_handlers[ListResourceTemplatesRequest]
    else:
        del server._lowlevel_server._request_handlers["resources/templates/list"]


def main() -> None:
    """Run in the mode that the first argument names."""
    match sys.argv[1]:
        case "http":
            if IS_FIRST:
                server.settings.port = int(sys.argv[2])
                server.run("streamable-http")
            else:
                server.run("streamable-http", port=int(sys.argv[2]))
        case "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            try:
                server.run("stdio")
            finally:
                time.sleep(600)
        case "chatty":
            print("Welcome to Things 1.0!", flush=True)
            server.run("stdio")
        case "desk":
            become_desk()
            server.run("stdio")
        case "old" if not IS_FIRST:
            asyncio.run(serve_after_handshake())
        case _:
            server.run("stdio")


if __name__ == "__main__":
    main()
