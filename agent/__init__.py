"""A small agent library: stateless runs, typed streamed responses, tools, cancellation. It does not use `agent.web`."""

from agent.agent import Agent
from agent.chat import Chat
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
from agent.limits import Limits
from agent.messages.parts import Audio, Image
from agent.models.catalog import ModelSpec
from agent.providers import Connection, Effort, Endpoint, connect
from agent.responses import Response, ResponseType
from agent.result import FinishReason, Journal, Options, RunOptions, RunResult
from agent.run import Run
from agent.suspension import Approve, Pending, Refuse, Suspension
from agent.suspension.seals import Seals
from agent.tools import Tool, Toolset, ask_user, tool
from agent.tracing.opentelemetry import Telemetry

__all__ = [
    "Agent",
    "AgentError",
    "Approve",
    "Audio",
    "Busy",
    "Chat",
    "ConfigError",
    "Connection",
    "Context",
    "Effort",
    "Endpoint",
    "FinishReason",
    "Image",
    "InputError",
    "Journal",
    "Limits",
    "MissingKey",
    "ModelSpec",
    "Options",
    "Pending",
    "ProviderError",
    "Refuse",
    "Response",
    "ResponseType",
    "Run",
    "RunOptions",
    "RunResult",
    "Seals",
    "SingleRun",
    "Suspension",
    "SuspensionError",
    "Telemetry",
    "Tool",
    "ToolError",
    "Toolset",
    "UnknownModel",
    "ask_user",
    "connect",
    "display",
    "stream_to_display",
    "tool",
]
