"""Hypothesis strategies for messages: everything that a provider, a tool or a visitor can put into a conversation.

Every message drawn here equals itself after a round trip through JSON, so tests can compare with `==`.
"""

from datetime import UTC, datetime
from functools import cache
from typing import Any

from hypothesis import strategies as st
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.usage import RequestUsage

# Half surrogate pairs are excluded, because they cannot be sent, and stores replace them.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    [
        *("", " ", "\n", "a\x00b", "\U0001f469\u200d\U0001f4bb", "e\u0301", "\u2028\u2029", "```py\n\t"),
        *("</think>", "\\ud800"),
    ]
)
NAMES = st.text("abcdefghij_", min_size=1, max_size=8)
MOMENTS = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
DETAILS = st.none() | st.dictionaries(NAMES, JSON, min_size=1, max_size=3)


@cache
def binaries() -> st.SearchStrategy[BinaryContent]:
    """Images, sound and files. An image has pydantic-ai's narrower class, as it has after loading."""
    kinds = st.sampled_from(["image/png", "image/jpeg", "audio/wav", "application/pdf", "application/octet-stream"])
    return st.builds(
        lambda data, kind: BinaryContent.narrow_type(BinaryContent(data, media_type=kind)),
        st.binary(max_size=64),
        kinds,
    )


@cache
def user_prompts() -> st.SearchStrategy[UserPromptPart]:
    """A visitor's prompt: a string, or a list of text and media."""
    url = NAMES.map(lambda name: ImageUrl(url=f"https://example.com/{name}.png"))
    items = TEXT | st.builds(TextContent, TEXT, metadata=DETAILS) | binaries() | url
    return st.builds(UserPromptPart, TEXT | st.lists(items, min_size=1, max_size=4), timestamp=MOMENTS)


@cache
def tool_calls() -> st.SearchStrategy[ToolCallPart]:
    """Calls with arguments as a dict, as streamed text, or without arguments."""
    return st.builds(
        ToolCallPart,
        tool_name=NAMES,
        args=st.none() | TEXT | st.dictionaries(NAMES, JSON, max_size=3),
        tool_call_id=NAMES,
        id=st.none() | NAMES,
        provider_name=st.none() | NAMES,
        provider_details=DETAILS,
    )


@cache
def tool_returns() -> st.SearchStrategy[ToolReturnPart]:
    """Results of every outcome: text, JSON, or JSON with media in it."""
    return st.builds(
        ToolReturnPart,
        tool_name=NAMES,
        content=TEXT | JSON | binaries() | st.lists(JSON | binaries(), max_size=3),
        tool_call_id=NAMES,
        metadata=DETAILS,
        timestamp=MOMENTS,
        outcome=st.sampled_from(["success", "failed", "denied", "interrupted"]),
    )


@cache
def texts() -> st.SearchStrategy[TextPart]:
    """Text of an answer, with the data that a provider wants back."""
    return st.builds(TextPart, TEXT, id=st.none() | NAMES, provider_name=st.none() | NAMES, provider_details=DETAILS)


@cache
def thoughts() -> st.SearchStrategy[ThinkingPart]:
    """Reasoning with a signature. Its text can be empty, as for encrypted reasoning."""
    return st.builds(
        ThinkingPart,
        TEXT,
        id=st.none() | NAMES,
        signature=st.none() | TEXT,
        provider_name=st.none() | NAMES,
        provider_details=DETAILS,
    )


@cache
def usages() -> st.SearchStrategy[RequestUsage]:
    """Token counts as a provider reports them."""
    counts = st.integers(0, 2**40)
    return st.builds(
        RequestUsage,
        input_tokens=counts,
        output_tokens=counts,
        cache_read_tokens=counts,
        details=st.dictionaries(NAMES, counts, max_size=2),
    )


@cache
def requests() -> st.SearchStrategy[ModelRequest]:
    """Requests to a model: prompts and tool results."""
    parts: st.SearchStrategy[ModelRequestPart] = user_prompts() | tool_returns()
    return st.builds(
        ModelRequest,
        st.lists(parts, min_size=1, max_size=3),
        timestamp=st.none() | MOMENTS,
        instructions=st.none() | TEXT,
        run_id=st.none() | NAMES,
        metadata=DETAILS,
    )


@cache
def responses() -> st.SearchStrategy[ModelResponse]:
    """Responses of a model: text, reasoning, tool calls, usage and the provider's own data."""
    parts: st.SearchStrategy[ModelResponsePart] = texts() | thoughts() | tool_calls()
    return st.builds(
        ModelResponse,
        st.lists(parts, max_size=4),
        usage=usages(),
        model_name=st.none() | NAMES,
        timestamp=MOMENTS,
        provider_name=st.none() | NAMES,
        provider_details=DETAILS,
        provider_response_id=st.none() | NAMES,
        finish_reason=st.sampled_from([None, "stop", "length", "content_filter", "tool_call", "error"]),
    )


@cache
def messages() -> st.SearchStrategy[ModelMessage]:
    """One message, a request or a response."""
    return requests() | responses()


@cache
def plain_conversations() -> st.SearchStrategy[list[ModelMessage]]:
    """Any first message, and then messages of one text each, as in most conversations."""
    prompts: st.SearchStrategy[ModelMessage] = st.builds(
        ModelRequest, st.builds(UserPromptPart, TEXT).map(lambda part: [part]), instructions=st.none() | TEXT
    )
    answers: st.SearchStrategy[ModelMessage] = st.builds(
        ModelResponse, st.builds(TextPart, TEXT).map(lambda part: [part])
    )
    rest = st.lists(prompts | answers, max_size=5)
    return st.tuples(messages(), rest).map(lambda drawn: [drawn[0], *drawn[1]])


@cache
def conversations(max_size: int = 5) -> st.SearchStrategy[list[ModelMessage]]:
    """Messages in a random order, with calls that have no results."""
    return st.lists(messages(), min_size=1, max_size=max_size)
