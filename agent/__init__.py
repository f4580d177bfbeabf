"""A small agent library: stateless runs, typed streamed responses, tools, cancellation. It does not use `agent.web`."""

from typing import Never

from pydantic_ai.messages import BinaryContent, ImageUrl, ModelMessage, TextContent

from agent.agent import Agent
from agent.chat import Chat
from agent.chat_files import ChatFile, SearchHit, SearchResult
from agent.context import Context
from agent.display import display, stream_to_display
from agent.errors import (
    AgentError,
    Busy,
    ConfigError,
    InputError,
    MissingKey,
    ProviderError,
    SingleRun,
    SuspensionError,
    ToolError,
    UnknownModel,
)
from agent.events import Event, RunCancelled, RunEnded, StateSnapshot, UserInputRequested
from agent.files.parts import Audio, Image
from agent.keyword_arguments import name_written_here
from agent.limits import Limits
from agent.messages.compaction import Compaction
from agent.messages.openai import Message, Part
from agent.messages.prompt import Prompt
from agent.models.catalog import ModelSpec
from agent.providers.connection import Connection, Effort, Endpoint, connect
from agent.responses import (
    ErrorResponse,
    ReasoningResponse,
    Response,
    ResponseType,
    TextResponse,
    ToolCallContent,
    ToolCallResponse,
    ToolResultContent,
    ToolResultResponse,
)
from agent.result import FinishReason, Journal, Options, RunOptions, RunResult
from agent.runtime.run import Run
from agent.suspension.seals import Seals
from agent.suspension.suspended_run import Approve, Pending, Refuse, Suspension
from agent.telemetry import Telemetry
from agent.tools.function_tools import Tool, Toolset, ask_user, tool

__all__ = [
    "Agent",
    "AgentError",
    "Approve",
    "Audio",
    "BinaryContent",
    "Busy",
    "Chat",
    "ChatFile",
    "Compaction",
    "ConfigError",
    "Connection",
    "Context",
    "Effort",
    "Endpoint",
    "ErrorResponse",
    "Event",
    "FinishReason",
    "Image",
    "ImageUrl",
    "InputError",
    "Journal",
    "Limits",
    "Message",
    "MissingKey",
    "ModelMessage",
    "ModelSpec",
    "Options",
    "Part",
    "Pending",
    "Prompt",
    "ProviderError",
    "ReasoningResponse",
    "Refuse",
    "Response",
    "ResponseType",
    "Run",
    "RunCancelled",
    "RunEnded",
    "RunOptions",
    "RunResult",
    "Seals",
    "SearchHit",
    "SearchResult",
    "SingleRun",
    "StateSnapshot",
    "Suspension",
    "SuspensionError",
    "Telemetry",
    "TextContent",
    "TextResponse",
    "Tool",
    "ToolCallContent",
    "ToolCallResponse",
    "ToolError",
    "ToolResultContent",
    "ToolResultResponse",
    "Toolset",
    "UnknownModel",
    "UserInputRequested",
    "ask_user",
    "connect",
    "display",
    "stream_to_display",
    "tool",
]


def __getattr__(name: str) -> Never:
    """Say what to import instead of a name of other libraries, or of another module here."""
    if written := name_written_here(name):
        raise ImportError(f"agent has no {name!r}: write {written}", name=__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
