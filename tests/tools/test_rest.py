"""REST tools with a real server on loopback: the requests, what the model reads, and what nobody sees."""

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import BinaryContent, ToolCallPart, ToolReturnPart

from agent.errors import ConfigError, InputError
from agent.fetch import Guard
from agent.tools.function_tools import Tool, execute
from agent.tools.rest import Auth, Parameter, rest_tool
from tests.support.small_site import Asked, Said, Site, answer, as_json, site, to
from tests.tiers import examples

SECRET = 'k/y+"1 2&e'


@pytest.fixture
async def there() -> AsyncIterator[Site]:
    async with site(star=lambda _: as_json({"ok": True})) as opened:
        yield opened


def made(there: Site, url: str = "/", **more: Any) -> Tool:
    """Return a tool for a page of the site."""
    given = {"description": "Look something up.", "guard": Guard(allow=(there.host,)), **more}
    return rest_tool("look", there.url + url, **given)


async def call(tool: Tool, arguments: Mapping[str, Any] | None = None) -> ToolReturnPart:
    return await execute({tool.name: tool}, ToolCallPart(tool.name, dict(arguments or {}), "1"), timeout=30)


def parameters(*names: str, **known: Parameter) -> dict[str, Parameter]:
    return {name: Parameter() for name in names} | known


# --- requests -------------------------------------------------------------------------------------------------------


def test_schema_has_types_descriptions_and_choices() -> None:
    tool = rest_tool(
        "rates",
        "https://example.org/{day}?base={base}&n={n}&all={all}&x={x}",
        description="Exchange rates.\n\nArgs: of a day.",
        parameters={
            "day": Parameter(description="As in 2024-02-29."),
            "base": Parameter(choices=("EUR", "USD"), default="EUR"),
            "n": Parameter(type="integer", optional=True),
            "all": Parameter(type="boolean", default=False),
            "x": Parameter(type="number"),
        },
    )
    told = tool.definition
    assert (told.name, told.description) == ("rates", "Exchange rates.\n\nArgs: of a day.")
    schema = told.parameters_json_schema
    assert schema["required"] == ["day", "x"]
    assert schema["properties"]["day"] == {"description": "As in 2024-02-29.", "type": "string"}
    assert schema["properties"]["base"] == {"default": "EUR", "enum": ["EUR", "USD"], "type": "string"}
    assert schema["properties"]["n"]["anyOf"] == [{"type": "integer"}, {"type": "null"}]
    assert schema["properties"]["all"] == {"default": False, "type": "boolean"}
    assert schema["properties"]["x"] == {"type": "number"}


BAD_ARGUMENTS = [{"n": "many"}, {}, {"n": 1, "kind": "c"}, {"n": 1, "other": 2}]


@pytest.mark.parametrize("arguments", BAD_ARGUMENTS, ids=str)
async def test_bad_arguments_are_not_sent(there: Site, arguments: Mapping[str, Any]) -> None:
    given = {"n": Parameter(type="integer"), "kind": Parameter(choices=("a", "b"), default="a")}
    result = await call(made(there, "/?n={n}&kind={kind}", parameters=given), arguments)
    assert result.outcome == "failed"
    assert there.asked == []


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=30), st.text(max_size=30))
@example("../../admin", "a&key=b#c")
@example("..", "")
@example("%2e%2e/x?y#z", "{path}")
@example("a/b\\c@evil.example:80", "ü €\r\nX: y")
async def test_value_stays_in_its_place(there: Site, path: str, query: str) -> None:
    there.asked.clear()
    tool = made(there, "/v1/{path}/now?fixed=1&q={query}&z=2", parameters=parameters("path", "query"))
    result = await call(tool, {"path": path, "query": query})
    if path in (".", ".."):
        assert result.outcome == "failed"
        assert there.asked == []
        return
    assert result.content == '{"ok": true}'
    target = urlsplit(there.asked[0].target)
    before, inside, after = target.path[:4], target.path[4:-4], target.path[-4:]
    assert (before, after) == ("/v1/", "/now")
    assert "/" not in inside
    assert unquote(inside) == path
    assert parse_qsl(target.query, keep_blank_values=True) == [("fixed", "1"), ("q", query), ("z", "2")]


async def test_missing_values_are_omitted(there: Site) -> None:
    given = parameters(
        a=Parameter(optional=True), b=Parameter(type="boolean", default=True), c=Parameter(type="number")
    )
    tool = made(there, "/?keep=1&a={a}&b={b}&c={c}", parameters=given)
    await call(tool, {"c": 2.5})
    await call(tool, {"a": "", "b": False, "c": 3})
    assert [one.target for one in there.asked] == ["/?keep=1&b=true&c=2.5", "/?keep=1&a=&b=false&c=3.0"]


async def test_body_is_filled_with_typed_values(there: Site) -> None:
    given = parameters("q", n=Parameter(type="integer"), tag=Parameter(optional=True))
    body = {"query": "{q}", "page": {"size": "{n}", "of": 10}, "say": "{q} x {n}", "tags": ["{tag}"], "tag": "{tag}"}
    tool = made(there, method="POST", body=body, parameters=given, headers={"x-trace": "abc"})
    await call(tool, {"q": 'a "b"\n', "n": 3})
    asked = there.asked[0]
    assert (asked.method, asked.headers["content-type"], asked.headers["x-trace"]) == (
        "POST",
        "application/json",
        "abc",
    )
    said = {"query": 'a "b"\n', "page": {"size": 3, "of": 10}, "say": 'a "b"\n x 3', "tags": []}
    assert json.loads(asked.body) == said
    form = made(
        there,
        method="PUT",
        body={"q": "{q}", "n": "{n}"},
        parameters=parameters("q", n=Parameter(type="integer")),
        headers={"content-type": "application/x-www-form-urlencoded"},
    )
    await call(form, {"q": "a&b=ü", "n": 3})
    assert (there.asked[1].method, parse_qsl(there.asked[1].body.decode())) == ("PUT", [("q", "a&b=ü"), ("n", "3")])


WRONG = {
    "a placeholder without a parameter": ({"url": "https://e.org/{x}"}, r"\{x\} has no parameter"),
    "a parameter without a placeholder": (
        {"url": "https://e.org/", "parameters": parameters("x")},
        "without a placeholder",
    ),
    "a placeholder in the host": ({"url": "https://{x}.org/", "parameters": parameters("x")}, "without placeholders"),
    "another scheme": ({"url": "ftp://e.org/"}, "http"),
    "a brace": ({"url": "https://e.org/{1}"}, "brace"),
    "optional in the path": ({"url": "https://e.org/{x}", "parameters": {"x": Parameter(optional=True)}}, "optional"),
    "a method": ({"url": "https://e.org/", "method": "TRACE"}, "TRACE"),
    "a body to GET": ({"url": "https://e.org/", "body": {}}, "no body"),
    "a path": ({"url": "https://e.org/", "result": "a["}, "JMESPath"),
    "a header of two lines": ({"url": "https://e.org/", "headers": {"X": "a\r\nY: b"}}, "one line"),
    "brackets": ({"url": "https://[e.org/"}, "not a URL"),
}


@pytest.mark.parametrize(("description", "sentence"), WRONG.values(), ids=WRONG)
def test_bad_description_is_refused_at_creation(description: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as refused:
        rest_tool("look", description="Look.", **description)
    assert "'look'" in str(refused.value)


# --- results --------------------------------------------------------------------------------------------------------

DATA = {"rates": {"EUR": 0.9, "JPY": [1, 2]}, "name": "ü", "none": None}
GOOD: dict[str, tuple[Callable[[Asked], Said], str, Any]] = {
    "JSON, compact": (lambda _: answer('{ "a":\n 1 }', kind="application/json"), "", '{"a": 1}'),
    "a place in JSON": (lambda _: as_json(DATA), "rates.EUR", "0.9"),
    "a string in JSON": (lambda _: as_json(DATA), "name", "ü"),
    "a list in JSON": (lambda _: as_json(DATA), "rates.JPY", "[1, 2]"),
    "JSON that is called text": (lambda _: answer('{"a": 1}'), "a", "1"),
    "text": (lambda _: answer("one\n  two"), "", "one\n  two"),
    "latin-1": (lambda _: answer("ü".encode("latin-1"), kind="text/plain; charset=ISO-8859-1"), "", "ü"),
    "an unknown charset": (lambda _: answer("ü", kind="text/plain; charset=undefined"), "", "ü"),
    "nothing": (lambda _: answer(status=204), "", ""),
    "long": (lambda _: answer("x" * 30_000), "", "x" * 20_000 + " … (10,000 more characters)"),
    "a picture": (
        lambda _: answer(b"\x89PNG", kind="image/png"),
        "",
        BinaryContent(b"\x89PNG", media_type="image/png"),
    ),
    "elsewhere": (lambda asked: to("/two") if asked.target == "/" else answer("two"), "", "two"),
}


@pytest.mark.parametrize(("said", "path", "content"), GOOD.values(), ids=GOOD)
async def test_good_answer_is_returned(said: Callable[[Asked], Said], path: str, content: Any) -> None:
    async with site(star=said) as there:
        result = await call(made(there, result=path))
    assert (result.outcome, result.content) == ("success", content)


async def silence(_: Asked) -> AsyncIterator[bytes]:
    await asyncio.sleep(600)
    yield b""


BAD: dict[str, tuple[Callable[[Asked], Said], str, str]] = {
    "a status": (lambda _: as_json({"message": "no such base"}, status=422), "", 'status 422: {"message": "no such'),
    "an empty status": (lambda _: answer(status=500), "", "status 500: nothing"),
    "a long status": (lambda _: answer("x" * 9000, status=500), "", "x" * 500 + " … (8,500 more characters)"),
    "no JSON": (lambda _: answer("<p>Hello", kind="text/html"), "a.b", "text/html, which is not JSON: <p>Hello"),
    "half JSON": (lambda _: answer('{"a": ', kind="application/json"), "a", "not JSON"),
    "deep JSON": (lambda _: answer("[" * 100_000, kind="application/json"), "a", "not JSON"),
    "nothing there": (lambda _: as_json(DATA), "rates.USD", "nothing at 'rates.USD'"),
    "null": (lambda _: as_json(DATA), "none", "nothing at"),
    "a wrong type": (lambda _: as_json(DATA), "length(rates.EUR)", "does not fit"),
    "bytes": (lambda _: answer(b"\0\1", kind="application/octet-stream"), "", "2 bytes that are no text"),
    "too much": (lambda _: answer(headers={"Content-Length": "9000000"}), "", "larger than 2,000,000 bytes"),
    "silence": (silence, "", "took longer than 1 s"),
    "inside": (lambda asked: to("http://127.0.0.1:80/"), "", "public internet"),
}


@pytest.mark.parametrize(("said", "path", "sentence"), BAD.values(), ids=BAD)
@pytest.mark.slow
async def test_failure_is_a_result_for_the_model(said: Callable[[Asked], Said], path: str, sentence: str) -> None:
    async with site(star=said) as there:
        result = await call(made(there, result=path, timeout=1 if said is silence else 30))
    assert result.outcome == "failed"
    assert sentence in result.content
    assert "Error:" not in result.content


async def test_tool_reaches_only_public_hosts_by_default(there: Site) -> None:
    tool = rest_tool(
        "look", f"http://127.0.0.1:{there.port}/", description="Look.", guard=Guard(ports=frozenset({there.port}))
    )
    result = await call(tool)
    assert (result.outcome, there.asked) == ("failed", [])
    assert result.content == "127.0.0.1 is not on the public internet, so nothing is fetched from it."
    assert (await call(rest_tool("look", "http://127.0.0.1/", description="Look."))).content == result.content


# --- secrets --------------------------------------------------------------------------------------------------------

KINDS = {
    "bearer": (
        Auth(kind="bearer", variable="K"),
        SECRET,
        lambda asked: asked.headers["authorization"] == f"Bearer {SECRET}",
    ),
    "basic": (
        Auth(kind="basic", variable="K"),
        f"me:{SECRET}",
        lambda asked: (
            base64.b64decode(asked.headers["authorization"].removeprefix("Basic ")).decode() == f"me:{SECRET}"
        ),
    ),
    "header": (Auth(kind="header", variable="K", name="X-Key"), SECRET, lambda asked: asked.headers["x-key"] == SECRET),
    "query": (
        Auth(kind="query", variable="K", name="key"),
        SECRET,
        lambda asked: dict(parse_qsl(urlsplit(asked.target).query)) == {"a": "1", "key": SECRET},
    ),
}


def everything(asked: Asked) -> str:
    """Return all that a server could echo of a request, in several encodings."""
    said = {"target": asked.target, "headers": dict(asked.headers)}
    coded = asked.headers.get("authorization", "").removeprefix("Basic ")
    plain = (
        base64.b64decode(coded).decode("latin-1") if asked.headers.get("authorization", "").startswith("Basic") else ""
    )
    return json.dumps([said, unquote(asked.target), plain]) + unquote(asked.target) + plain


ECHOES: dict[str, tuple[Callable[[Asked], Said], str]] = {
    "as text": (lambda asked: answer(everything(asked)), ""),
    "as JSON": (lambda asked: as_json([everything(asked), dict(asked.headers)]), ""),
    "by a path": (lambda asked: as_json({"a": everything(asked)}), "a"),
    "as an error": (lambda asked: answer(everything(asked), status=400), ""),
    "as no JSON": (lambda asked: answer("<p>" + everything(asked)), "a"),
    "as a broken answer": (lambda asked: (everything(asked) + "\r\n\r\n").encode(), ""),
    "as a redirect": (lambda asked: to("http://[" + everything(asked)), ""),
}


@pytest.mark.parametrize(("said", "path"), ECHOES.values(), ids=ECHOES)
@pytest.mark.parametrize(("auth", "secret", "has_it"), KINDS.values(), ids=KINDS)
async def test_secret_is_sent_and_shown_nowhere(
    said: Callable[[Asked], Said],
    path: str,
    auth: Auth,
    secret: str,
    has_it: Callable[[Asked], bool],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with site(star=said) as there:
        tool = made(there, "/?a=1", auth=auth, env={"K": secret}, result=path)
        result = await call(tool)
        assert has_it(there.asked[0])
    # The HTTP library's own DEBUG trace contains the server's headers.
    logged = [one.getMessage() for one in caplog.records]
    logged = [line for line in logged if not line.startswith("receive_response_headers")]
    told = f"{result.content} {result!r} {tool!r} {tool.definition!r}"
    shown = f"{told} {auth!r} {auth.credentials({'K': secret})!r} {logged}"
    coded = base64.b64encode(secret.encode()).decode()
    for form in (SECRET, SECRET[:8], SECRET.replace('"', '\\"'), "k%2Fy%2B", coded):
        assert form not in shown


async def test_truncation_reveals_no_part_of_a_secret() -> None:
    async with site(star=lambda _: answer("x" * 496 + SECRET, status=400)) as there:
        result = await call(made(there, auth=Auth(kind="bearer", variable="K"), env={"K": SECRET}))
    assert SECRET[:2] not in result.content


@pytest.mark.parametrize(
    ("env", "said"), [({}, "K is not set"), ({"K": " "}, "K is not set"), ({"K": "a\nb"}, "header")]
)
def test_missing_or_bad_secret_is_reported_at_once(env: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        rest_tool("look", "https://e.org/", description="Look.", auth=Auth(kind="bearer", variable="K"), env=env)
    assert "a\nb" not in str(refused.value)


@pytest.mark.parametrize("wrong", [{"kind": "digest"}, {"kind": "header"}, {"kind": "bearer", "name": "X"}], ids=str)
def test_bad_auth_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"auth\."):
        Auth(variable="K", **wrong)
