"""An MCP server with one tool, started by `examples/mcp_server.py`. It does not import this project."""

try:
    from mcp.server.mcpserver import MCPServer
except ImportError:  # version 1 of the SDK
    from mcp.server.fastmcp import FastMCP as MCPServer

server: MCPServer = MCPServer("words")


@server.tool()
def length(word: str) -> int:
    """Count the letters of a word."""
    return len(word)


if __name__ == "__main__":
    server.run("stdio")
