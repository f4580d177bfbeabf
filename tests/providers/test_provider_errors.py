"""Failures of every vendor: the kind, the message, the requested pause, and what the log can contain."""

import json
import logging
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_ai.exceptions import ContentFilterError, ModelAPIError, ModelHTTPError, UnexpectedModelBehavior

from agent import Agent, Endpoint, Limits, ProviderError, connect
from agent.models.catalog import load_catalog
from agent.providers.errors import HIDDEN, explain, redact
from tests.support import dialects
from tests.support.dialect_server import Playing, Reply
from tests.tiers import examples

KEY = "opensesame-4711-opensesame"
"""A key in a form that no pattern recognises."""

OPENAI, CLAUDE, GEMINI = "openai:gpt-6-luna", "anthropic:claude-sonnet-5-5", "google:gemini-3.8-flash"
XAI, ROUTER, VLLM = "xai:grok-4.6", "huggingface:Qwen/Qwen3-8B", "vllm:Qwen/Qwen3-8B"
TEXT = {"": "/v1", "anthropic": "", "google": ""}


def openai(message: str, code: str | None = None, type: str = "invalid_request_error") -> dict[str, Any]:
    return {"error": {"message": message, "type": type, "param": None, "code": code}}


def claude(message: str, type: str = "invalid_request_error") -> dict[str, Any]:
    return {"type": "error", "error": {"type": type, "message": message}, "request_id": "req_011CSHoEeqs5C35K2UUq"}


def gemini(message: str, code: int, status: str, *details: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "status": status, "details": list(details)}}


def xai(code: str, error: str) -> dict[str, Any]:
    return {"code": code, "error": error}


BAD_KEY = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID", "domain": "googleapis.com"}
RETRY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "17s"}


def exhausted(id_: str) -> dict[str, Any]:
    quota = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": id_}]}
    return gemini("You exceeded your current quota.", 429, "RESOURCE_EXHAUSTED", quota, RETRY)


USED_UP, REJECTED = "The account's quota for ", "rejected the API key. Check it, or use another one."
LONG, INVALID = "The conversation has {} tokens and {} reads at most {}.", "Client specified an invalid argument"
DENIED, NO_ACCESS = "The caller does not have permission", "does not let this key use 'gpt-6-luna'"
OFTEN, MILLISECONDS = "is getting too many requests.", {"retry-after-ms": "1500", "retry-after": "2"}
TOO_LONG = (
    "This model's maximum context length is 128000 tokens. However, your messages have resulted in 130011 tokens."
)
TOO_MANY = "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 9 others"
EXCEEDS = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."
PROMPT_LENGTH = "This model's maximum prompt length is 500000 but the request contains 537812 tokens."
CLAUDE_5, NO_ROOM = ("Claude Sonnet 5.5", "200,000"), "has 197,202 tokens, which leaves too little of the 200,000"

FAILURES: dict[str, list[tuple[Any, ...]]] = {
    "key": [
        (OPENAI, 401, openai(f"Incorrect API key provided: {KEY}.", "invalid_api_key"), f"OpenAI {REJECTED}"),
        (CLAUDE, 401, claude("invalid x-api-key", "authentication_error"), f"Anthropic {REJECTED}"),
        (GEMINI, 400, gemini("API key not valid.", 400, "INVALID_ARGUMENT", BAD_KEY), f"Google {REJECTED}"),
        (XAI, 400, xai(INVALID, "Incorrect API key provided: op***me."), f"xAI {REJECTED}"),
        (ROUTER, 401, {"error": "Invalid username or password."}, f"Hugging Face {REJECTED}"),
        (VLLM, 401, {"error": "Unauthorized"}, "The server's key was rejected. Tell its owner."),
    ],
    "access": [
        (OPENAI, 403, openai("Your project does not have access to it", "model_not_found"), f"OpenAI {NO_ACCESS}."),
        (OPENAI, 401, openai("You have insufficient permissions."), f'OpenAI {NO_ACCESS}. "You have insufficient'),
        (GEMINI, 400, gemini("User location is not supported.", 400, "FAILED_PRECONDITION"), "Google does not let"),
    ],
    "unknown_model": [
        (OPENAI, 404, openai("The model does not exist.", "model_not_found"), "OpenAI has no model named 'gpt-6-luna'"),
        (CLAUDE, 404, claude("model: claude-sonnet-5-5", "not_found_error"), "Anthropic has no model named 'claude-s"),
        (ROUTER, 400, openai("It is not supported by any provider.", "model_not_supported"), "Hugging Face has no"),
    ],
    "quota": [
        (OPENAI, 429, openai("You exceeded your quota.", "insufficient_quota"), USED_UP),
        (ROUTER, 402, {"error": "You have exceeded your monthly included credits."}, USED_UP),
        (CLAUDE, 400, claude("Your credit balance is too low to access the API."), USED_UP),
        (XAI, 403, xai(DENIED, "Your newly created team doesn't have any credits yet."), USED_UP),
        (GEMINI, 429, exhausted("RequestsPerDayPerModel"), USED_UP, 17.0),
    ],
    "rate_limit": [
        (OPENAI, 429, openai("Rate limit reached.", "rate_limit_exceeded"), f"OpenAI {OFTEN}", 1.5, MILLISECONDS),
        (
            CLAUDE,
            429,
            claude("Rate limit reached.", "rate_limit_error"),
            f"Anthropic {OFTEN}",
            7.0,
            {"retry-after": "7"},
        ),
        (GEMINI, 429, exhausted("RequestsPerMinutePerModel"), f"Google {OFTEN}", 17.0),
    ],
    "overloaded": [
        (CLAUDE, 529, claude("Overloaded", "overloaded_error"), "Anthropic is overloaded."),
        (GEMINI, 503, gemini("Overloaded.", 503, "UNAVAILABLE"), "Google is overloaded."),
        (OPENAI, 503, openai("That model is at capacity."), "OpenAI cannot answer"),
    ],
    "server": [
        (OPENAI, 408, openai("Request timeout."), "OpenAI gave up waiting for the request (HTTP 408)."),
        (OPENAI, 409, openai("Conflict."), 'OpenAI failed (HTTP 409). "Conflict".'),
        (CLAUDE, 500, claude("Internal server error", "api_error"), "Anthropic failed (HTTP 500)."),
        (XAI, 502, "<html><h1>Bad Gateway</h1></html>", "xAI failed (HTTP 502)."),
    ],
    "context": [
        (OPENAI, 400, openai(TOO_LONG), LONG.format("130,011", "GPT-6 Luna", "128,000")),
        (OPENAI, 400, openai("Your input exceeds the context window of this model."), "The conversation is longer"),
        (CLAUDE, 400, claude("prompt is too long: 208310 tokens > 200000 maximum"), LONG.format("208,310", *CLAUDE_5)),
        (CLAUDE, 400, claude("input length and `max_tokens` exceed context limit: 197202 + 21333 > 200000"), NO_ROOM),
        (ROUTER, 422, {"error": TOO_MANY}, LONG.format("5,000", "Qwen3-8B", "4,096")),
        (GEMINI, 400, gemini(EXCEEDS, 400, "INVALID"), LONG.format("1,200,000", "Gemini 3.8 Flash", "1,048,576")),
        (XAI, 400, xai(INVALID, PROMPT_LENGTH), LONG.format("537,812", "Grok 4.6", "500,000")),
    ],
    "refusal": [
        (OPENAI, 400, openai("Invalid prompt: it was flagged.", "invalid_prompt"), "OpenAI refuses to answer this."),
        (XAI, 403, xai(DENIED, "Content violates usage guidelines. SAFETY_CHECK_TYPE"), "xAI refuses to answer this."),
    ],
    "unsupported": [
        (OPENAI, 400, openai("An unsupported image.", "invalid_image_format"), 'OpenAI refused the picture. "An'),
        (CLAUDE, 400, claude("image.source.base64: Could not process image"), "Anthropic refused the picture."),
        (CLAUDE, 413, claude("Request exceeds the maximum size", "request_too_large"), "This request is too large for"),
        (OPENAI, 400, openai("Unknown parameter: 'foo'."), 'OpenAI refused the request (HTTP 400). "Unknown parameter'),
    ],
}
"""By kind: the model, the status and the body, how the message begins, the pause that is asked for, and headers."""
ROWS = [(kind, *row) for kind, rows in FAILURES.items() for row in rows]


running_server, server = dialects.running_server, dialects.server


async def failed(server: Playing, model: str, reply: Reply, prompt: Any = "Hello") -> ProviderError:
    """Return the error that a reply becomes on its way through SDK, library, connection and run."""
    spec = load_catalog().find(model)
    connection = connect(spec, Endpoint(server.url + TEXT.get(spec.provider, TEXT[""]), KEY))
    told: list[ProviderError] = []
    explaining = connection.explain

    def heard(error: Exception) -> ProviderError:
        told.append(explaining(error))
        return told[-1]

    connection.explain = heard  # type: ignore[method-assign]
    server.play(reply)
    async with Agent(connection, limits=Limits(retries=0)) as agent:
        result = await agent.ask(prompt)
    [error] = told
    assert (result.finish_reason, result.note.detail) == ("error", str(error))
    assert len(server.requests) == 1, "the SDK repeats it"
    return error


@pytest.mark.parametrize("row", ROWS, ids=[f"{kind}, {model}, {status}" for kind, model, status, *_ in ROWS])
async def test_failure_is_explained(server: Playing, row: tuple[Any, ...]) -> None:
    kind, model, status, body, words, *more = row
    retry_after, headers = (*more, *(None, {})[len(more) :])
    reply = Reply(status=status, body=body.encode() if isinstance(body, str) else body, headers=headers)
    error = await failed(server, model, reply)
    assert (error.kind, error.status, error.retry_after) == (kind, status, retry_after)
    assert words in str(error)
    assert "." in str(error)
    for ugly in (KEY, "{", "<", "***", "Traceback"):
        assert ugly not in str(error)


@pytest.mark.parametrize("model", [OPENAI, CLAUDE, ROUTER])
async def test_retry_after_can_be_a_date(server: Playing, model: str) -> None:
    then = datetime.now(UTC) + timedelta(seconds=30)
    headers = {"retry-after": format_datetime(then, usegmt=True)}
    error = await failed(server, model, Reply(status=429, body=openai("Slow down."), headers=headers))
    assert error.kind == "rate_limit"
    assert error.retry_after is not None
    assert 0 < error.retry_after <= 30


STREAMS = [
    (
        OPENAI,
        {"type": "error", "code": "rate_limit_exceeded", "message": "Slow down.", "param": None, "sequence_number": 0},
        ("rate_limit", 429),
    ),
    (CLAUDE, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, ("overloaded", 529)),
    (GEMINI, gemini("The model is overloaded.", 503, "UNAVAILABLE"), ("overloaded", 503)),
    (GEMINI, gemini("Slow down.", 429, "RESOURCE_EXHAUSTED", RETRY), ("rate_limit", 429)),
    (ROUTER, openai("Slow down.", None, "rate_limit_error"), ("rate_limit", 429)),
    (VLLM, {"error": {"message": "Boom.", "type": "InternalServerError", "code": 500}}, ("server", 500)),
    (
        XAI,
        {
            "type": "error",
            "code": None,
            "message": "This model's maximum prompt length is 5 but the request contains 7 tokens.",
            "sequence_number": 0,
        },
        ("context", None),
    ),
]


@pytest.mark.parametrize(("model", "event", "told"), STREAMS, ids=[f"{row[0]}, {row[2][0]}" for row in STREAMS])
async def test_stream_error_is_explained_alike(
    server: Playing, model: str, event: dict[str, Any], told: tuple[str, int | None]
) -> None:
    error = await failed(server, model, Reply(sse=[event], named="type" in event, crlf=model == GEMINI))
    assert (error.kind, error.status) == told


def test_errors_before_any_request_are_explained() -> None:
    openai_ = load_catalog().providers["openai"]

    def told(error: Exception) -> tuple[str, str]:
        made = explain(error, "m", openai_)
        return made.kind, str(made)

    assert told(NotImplementedError("BinaryContent with audio is not supported")) == (
        "unsupported",
        "'m' can't read this attachment.",
    )
    assert told(httpx2.ReadTimeout("slow")) == ("connection", "OpenAI did not answer in time.")
    assert told(httpx2.RemoteProtocolError("cut"))[0] == "connection"
    assert told(ConnectionResetError())[0] == "connection"
    assert told(ContentFilterError("no"))[0] == "refusal"
    assert told(UnexpectedModelBehavior("odd"))[0] == "malformed"
    assert told(UnexpectedModelBehavior("Streamed response ended without content or tool calls"))[0] == "interrupted"
    assert told(ModelAPIError("m", "Streamed response ended without a `finish_reason`"))[0] == "interrupted"
    assert told(KeyError("x")) == ("malformed", "OpenAI could not be used. The log has the details.")


# --- redaction --------------------------------------------------------------------------------------------------------

SECRETS = [
    KEY,
    "sk-proj-abcdefgh12345",
    "sk-ant-api03-Ab1",
    "hf_abcdefghijkl",
    "xai-0123456789abcdef",
    "AIzaSyA1234567890",
    "AQ.Ab8RN6LongOne",
    "ab******yz",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
    "A1" * 30,
    *(
        form.format("swordfish")
        for form in (
            "Bearer {}",
            "x-api-key: {}",
            '"x-goog-api-key": "{}"',
            "Authorization: {}",
            "https://example.com/v1/models?key={}&x=1",
            "?access_token={}",
        )
    ),
]


@pytest.mark.parametrize("secret", SECRETS)
def test_likely_keys_are_hidden(secret: str) -> None:
    told = redact(f"It was ({secret}), they say.", KEY)
    assert secret not in told
    assert "swordfish" not in told
    assert HIDDEN in told
    assert told.startswith("It was")


@pytest.mark.parametrize(
    "text",
    [
        "Rate limit reached for gpt-6-luna in organization org on tokens per min (TPM): Limit 30000.",
        "max_tokens: 70000 > 64000, which is the maximum for claude-sonnet-5-5",
        '{"type": "api_error", "code": "token_limit", "param": "key_names"}',
        "See https://platform.example.com/docs/error-codes for more.",
        "request 1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed",
    ],
)
def test_other_text_is_kept(text: str) -> None:
    assert redact(text, KEY) == text


SCRAPS = st.one_of(st.sampled_from(SECRETS), st.text(max_size=12), st.sampled_from(['"', "\\", "{", "\n", "=", "key"]))


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(SCRAPS, max_size=6).map(" ".join))
def test_redaction_is_idempotent(text: str) -> None:
    once = redact(text, KEY)
    assert KEY not in once
    assert redact(once, KEY) == once


VALUES = st.recursive(
    st.one_of(SCRAPS, st.none(), st.integers(), st.booleans(), st.just("what-somebody-wrote {17}")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["error", "message", "code", "type", "details", "reason", "n_ctx", "input", "body"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=8,
)
STATUSES = st.sampled_from([400, 401, 402, 403, 404, 408, 409, 413, 418, 422, 429, 500, 502, 503, 529])


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow])
@given(STATUSES, VALUES, st.sampled_from(sorted(load_catalog().providers)), st.booleans())
def test_no_response_body_is_shown(status: int, body: Any, provider: str, in_stream: bool) -> None:
    error: Exception = ModelHTTPError(status, "m", body, in_stream=in_stream)
    if in_stream and status == 418:
        error = ModelAPIError("m", json.dumps(body), body=body, in_stream=True)
    told = explain(error, "m", load_catalog().providers[provider], key=KEY)
    sentence = str(told)
    for ugly in (KEY, "swordfish", "sk-proj-abc", "sk-ant-api03", "{", "[", "\n", "Traceback", "<"):
        assert ugly not in sentence
    assert 10 < len(sentence) < 500
    assert told.status == (None if in_stream and status == 418 else status)


# --- the log ----------------------------------------------------------------------------------------------------------

MODELS = [OPENAI, XAI, CLAUDE, GEMINI, ROUTER, VLLM]


@pytest.mark.parametrize("model", MODELS)
async def test_log_has_details_but_no_key(server: Playing, model: str, caplog: pytest.LogCaptureFixture) -> None:
    """Every logger is at its most verbose level, and the server repeats the key."""
    body = {"error": {"message": f"No: {KEY}, sk-proj-abcdefgh12345.", "code": 418, "status": "TEAPOT", "type": "odd"}}
    headers = {"x-request-id": "req-1", "request-id": "req-1"}
    with caplog.at_level(logging.DEBUG):
        for name in ("openai", "anthropic", "google_genai", "httpx2", "httpcore2", "pydantic_ai", "agent"):
            caplog.set_level(logging.DEBUG, logger=name)
        error = await failed(server, model, Reply(status=418, body=body, headers=headers))
    assert error.status == 418
    [warning] = [one for one in caplog.records if one.levelno == logging.WARNING and one.name.startswith("agent")]
    for detail in ("418", "TEAPOT", "odd", load_catalog().find(model).provider, "ModelHTTPError", "request req-1"):
        assert detail in warning.getMessage()
    names = {one.name.partition(".")[0] for one in caplog.records}
    assert {"agent", "httpcore2"} <= names, "the loggers were silent"
    everything = caplog.text + "".join(repr(one.__dict__) for one in caplog.records)
    assert any("Traceback" in one.getMessage() for one in caplog.records), "the trace is missing at DEBUG"
    assert KEY not in everything
    assert "sk-proj-abcdefgh" not in everything


@pytest.mark.parametrize(("model", "variable"), [(VLLM, "VLLM_API_KEY"), (GEMINI, "GEMINI_API_KEY or GOOGLE_API_KEY")])
async def test_refused_key_names_its_variable_in_the_log_only(
    server: Playing, caplog: pytest.LogCaptureFixture, model: str, variable: str
) -> None:
    error = await failed(server, model, Reply(status=401, body=openai("Wrong key.")))
    assert error.kind == "key"
    assert "API_KEY" not in str(error)
    assert f"check {variable}" in caplog.text


async def test_no_traceback_without_debug(server: Playing, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        await failed(server, OPENAI, Reply(status=500, body=openai("Boom.")))
    assert "Traceback" not in caplog.text
