"""A real MCP server for tests, built with the SDK: `python -m tests.support.mcp_server stdio`, or `http PORT`.

`stubborn` ignores a closed stdin and SIGTERM. `chatty` first prints a line that is no message.
"""

import asyncio
import os
import signal
import sys
import time

try:
    from mcp.server.mcpserver import Audio, Context, Image, MCPServer
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
        case _:
            server.run("stdio")


if __name__ == "__main__":
    main()
