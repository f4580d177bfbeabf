"""A small agent package: stateless runs, typed streamed responses, tools, cancellation. It knows no page."""

from agent.agent import Agent
from agent.catalog import ModelSpec
from agent.chat import Chat
from agent.context import Context
from agent.display import display, stream_to_display
from agent.errors import AgentError, Busy, ConfigError, InputError, ProviderError, SingleRun, UnknownModel
from agent.guardrails import Limits
from agent.parts import Audio, Image
from agent.providers import Connection, Endpoint, connect
from agent.responses import Response, ResponseType
from agent.result import CancelReason, FinishReason, Journal, Options, RunResult
from agent.run import Run
from agent.tools import Tool, tool

__all__ = [
    "Agent",
    "AgentError",
    "Audio",
    "Busy",
    "CancelReason",
    "Chat",
    "ConfigError",
    "Connection",
    "Context",
    "Endpoint",
    "FinishReason",
    "Image",
    "InputError",
    "Journal",
    "Limits",
    "ModelSpec",
    "Options",
    "ProviderError",
    "Response",
    "ResponseType",
    "Run",
    "RunResult",
    "SingleRun",
    "Tool",
    "UnknownModel",
    "connect",
    "display",
    "stream_to_display",
    "tool",
]
