"""Functions as tools: their schema, and that every call has a result, whatever the function does."""

import asyncio
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from io import BytesIO, StringIO
from typing import Annotated, Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from PIL import Image as Pillow
from pydantic import AfterValidator, BaseModel
from pydantic_ai.messages import BinaryContent, ToolCallPart, ToolReturnPart

from agent import Agent, InputError, tool
from agent.errors import ToolError
from agent.tools.function_tools import MAX_RESULT, Tool, as_tool, execute
from tests.support.strategies import JSON, TEXT
from tests.tiers import examples


async def call(function: Any, arguments: Any = None, *, seconds: float = 5.0) -> ToolReturnPart:
    """Return the result of one tool call, executed as runs do."""
    made = as_tool(function)
    args = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    result = await execute({made.name: made}, ToolCallPart(made.name, args, tool_call_id="c1"), timeout=seconds)
    assert (result.tool_call_id, result.tool_name) == ("c1", made.name)
    return result


# --- the schema -------------------------------------------------------------------------------------------------------


class Place(BaseModel):
    """Where."""

    city: str
    country: str = "FR"


@tool
async def weather(place: Place, day: date, unit: Literal["C", "F"] = "C", *, detailed: bool = False) -> str:
    """Tell the weather.

    Args:
        place: Where to look.
        day: Which day,
            as ISO 8601.
        unit: Degrees.
    """
    assert isinstance(place, Place)
    assert isinstance(day, date)
    return f"{place.city},{place.country} {day:%d.%m.} {unit} {detailed}"


def test_schema_comes_from_signature_and_docstring() -> None:
    definition = weather.definition
    schema = definition.parameters_json_schema
    assert (definition.name, definition.description) == ("weather", "Tell the weather.")
    assert schema["required"] == ["place", "day"]
    assert schema["additionalProperties"] is False
    properties = schema["properties"]
    assert properties["unit"] == {"default": "C", "description": "Degrees.", "enum": ["C", "F"], "type": "string"}
    assert properties["day"]["format"] == "date"
    assert "as ISO 8601" in properties["day"]["description"]
    assert properties["detailed"]["default"] is False
    assert "city" in json.dumps(schema)


async def test_arguments_arrive_as_declared_types() -> None:
    given = {"place": {"city": "Paris"}, "day": "2030-02-01", "detailed": True}
    result = await call(weather, given)
    assert (result.content, result.outcome) == ("Paris,FR 01.02. C True", "success")


async def test_positional_variadic_and_default_arguments() -> None:
    def gather(first: int, /, second: int = 2, *rest: int, last: int = 9, **others: int) -> list[Any]:
        return [first, second, rest, last, others]

    assert (await call(gather, {"first": 1})).content == "[1,2,[],9,{}]"
    everything = {"first": 1, "second": 3, "rest": [4, 5], "last": 6, "other": 7}
    assert (await call(gather, everything)).content == '[1,3,[4,5],6,{"other":7}]'

    def optional(first: int = 1, /, *rest: str) -> list[Any]:
        return [first, *rest]

    assert (await call(optional)).content == "[1]"
    assert (await call(optional, {"rest": ["a"]})).content == '[1,"a"]'


def test_tool_is_still_its_function() -> None:
    @tool(name="twice", timeout=2)
    def double(x: int) -> int:
        return 2 * x

    assert double(4) == 8
    assert (double.name, double.timeout, double.is_async, weather.is_async) == ("twice", 2, False, True)
    assert as_tool(double) is double


def test_bad_signature_is_refused_by_name() -> None:
    def strange(x: Callable[[threading.Thread], None], lock: threading.Lock) -> None: ...

    with pytest.raises(InputError, match="'strange'"):
        tool(strange)


# --- results ----------------------------------------------------------------------------------------------------------


@dataclass
class Point:
    x: int
    y: float


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("", ""),
        (' "as it is"\n', ' "as it is"\n'),
        (None, "null"),
        (True, "true"),
        (3, "3"),
        ({"b": [1, "\u00e9"], "a": None}, '{"b":[1,"\u00e9"],"a":null}'),
        (Point(1, 2.5), '{"x":1,"y":2.5}'),
        (Place(city="Rome"), '{"city":"Rome","country":"FR"}'),
        ([date(2030, 1, 2)], '["2030-01-02"]'),
        (("a", 1), '["a",1]'),
        ("half \ud83d of one", "half \ufffd of one"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_text_stays_and_other_values_become_json(value: Any, content: str, kind: str) -> None:
    def plain() -> Any:
        return value

    async def later() -> Any:
        return value

    result = await call(plain if kind == "sync" else later)
    assert (result.content, result.outcome) == (content, "success")


async def test_picture_stays_a_picture() -> None:
    picture = BinaryContent(b"\x89PNG", media_type="image/png")
    assert (await call(tool(name="draw")(lambda: picture))).content is picture


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "CMYK", "I;16"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda picture: picture,
        lambda picture: ["Here:", picture],
        lambda picture: (picture, picture),
        lambda picture: {"title": "Here", "pictures": [picture]},
    ],
    ids=["alone", "after a text", "two", "in a dict"],
)
async def test_picture_of_pillow_is_a_picture(wrap: Callable[[Any], Any], mode: str) -> None:
    result = await call(tool(name="draw")(lambda: wrap(Pillow.new(mode, (3, 2)))))
    assert result.outcome == "success"
    items = result.content if isinstance(result.content, list) else [result.content]
    pictures = [item for item in items if isinstance(item, BinaryContent)]
    assert pictures
    for one in pictures:
        assert Pillow.open(BytesIO(one.data)).size == (3, 2)
    assert "PIL" not in str([item for item in items if isinstance(item, str)])


@pytest.mark.parametrize("size", [MAX_RESULT, MAX_RESULT + 1, 10 * MAX_RESULT])
@pytest.mark.parametrize(
    "make",
    [
        lambda text: text,
        lambda text: {"text": text},
        lambda text: [text, BinaryContent(b"%PDF", media_type="application/pdf"), text],
        lambda text: (_ for _ in ()).throw(ToolError(text)),
    ],
    ids=["text", "json", "list", "failure"],
)
async def test_result_is_bounded_and_model_is_told(make: Callable[[str], Any], size: int) -> None:
    result = await call(tool(name="long")(lambda: make("x" * size)))
    items = result.content if isinstance(result.content, list) else [result.content]
    texts = [item for item in items if isinstance(item, str)]
    assert sum(map(len, texts)) <= MAX_RESULT
    is_whole = size == MAX_RESULT and texts == ["x" * size]
    assert ("characters" in texts[-1]) is not is_whole
    assert len(items) - len(texts) == (1 if isinstance(result.content, list) else 0), "a file is lost"


@pytest.mark.parametrize("name", ["météo", "get weather", "a.b", "<lambda>", "x" * 65, "", "functions:f"])
def test_name_that_providers_refuse_is_refused_at_once(name: str) -> None:
    def answer() -> str:
        return "42"

    answer.__name__ = name
    for make in (lambda: Tool(answer, name), lambda: tool(answer), lambda: Agent("openai:gpt-5", tools=[answer])):
        with pytest.raises(InputError, match="lambda" if "lambda" in name else re.escape(repr(name))):
            make()
    assert tool(name="x" * 64)(answer).name == "x" * 64


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(JSON | TEXT)
def test_any_json_value_round_trips(value: Any) -> None:
    async def give() -> Any:
        return value

    content = asyncio.run(call(give)).content
    assert content == value if isinstance(value, str) else json.loads(content) == value


async def test_object_without_json_form_becomes_text() -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd"

    assert (await call(tool(name="odd")(lambda: {"it": Odd()}))).content == '{"it":"odd"}'


# --- failures ---------------------------------------------------------------------------------------------------------


def loop_of_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def raising(error: BaseException) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


def raising_later(error: BaseException) -> Callable[[], Any]:
    async def fail() -> Any:
        await asyncio.sleep(0)
        raise error

    return fail


class Own(BaseException):
    pass


FAULTS = [
    (LookupError("no luck"), "LookupError: no luck"),
    (TimeoutError("its own"), "TimeoutError: its own"),
    (KeyboardInterrupt(), "KeyboardInterrupt"),
    (SystemExit(3), "SystemExit"),
    (StopIteration(1), "StopIteration"),
    (asyncio.CancelledError(), "ancelled"),
    (Own("mine"), "Own"),
    (BaseExceptionGroup("several", [Own()]), "BaseExceptionGroup"),
    (ValueError("half \ud83d"), "ValueError: half \ufffd"),
]


@pytest.mark.parametrize(("error", "words"), FAULTS, ids=[type(error).__name__ for error, _ in FAULTS])
@pytest.mark.parametrize("make", [raising, raising_later])
async def test_any_exception_becomes_a_result(
    make: Callable[[BaseException], Any], error: BaseException, words: str
) -> None:
    result = await call(make(error))
    assert result.outcome == "failed"
    if not (make is raising_later and isinstance(error, StopIteration)):  # Python raises it as a RuntimeError
        assert words in result.content


class Plain:
    pass


def endless() -> Iterator[int]:
    while True:
        yield 1


async def endless_later() -> AsyncIterator[int]:
    while True:
        yield 1


@pytest.mark.parametrize(
    "make",
    [
        loop_of_itself,
        lambda: b"\xff\xfe",
        lambda: {"a": "\ud83d"},
        endless,
        endless_later,
        lambda: map(str, [1]),
        lambda: {"numbers": [endless()]},
        StringIO,
        Plain,
        lambda: Plain,
        lambda: [1, {"it": Plain()}],
        lambda: len,
        threading.Lock,
    ],
    ids=["loop", "bytes", "half", "generator", "async", "map", "inside", "file", "object", "class", "in", "f", "lock"],
)
async def test_value_without_json_form_is_refused(make: Callable[[], Any]) -> None:
    result = await call(tool(name="strange")(lambda: make()))
    assert result.outcome == "failed"
    assert "'strange'" in result.content
    assert " at 0x" not in result.content


async def test_bytes_of_a_tool_are_explained() -> None:
    result = await call(tool(name="draw")(lambda: b"\x89PNG"))
    assert "The tool 'draw' returned bytes. Image.from_bytes and Audio.from_bytes make" in result.content


def explode(value: int) -> int:
    raise KeyError("a validator of its own")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('{"x": "three"}', "x: Input should be a valid integer"),
        ("{}", "x: "),
        ('{"x": 1, "y": 2}', "y: "),
        ('{"x": ', "not a JSON object: '{\"x\": '"),
        ("[1]", "not a JSON object"),
        ("null", "not a JSON object"),
        ("nonsense", "not a JSON object: 'nonsense'"),
    ],
)
async def test_bad_arguments_are_explained_to_model(arguments: str, words: str) -> None:
    ran: list[int] = []

    def typed(x: int) -> None:
        ran.append(x)

    result = await call(typed, arguments)
    assert result.outcome == "failed"
    assert words in result.content
    assert ran == []


async def test_failing_validator_is_a_result() -> None:
    def typed(x: Annotated[int, AfterValidator(explode)]) -> None: ...

    result = await call(typed, {"x": 1})
    assert result.outcome == "failed"
    assert "KeyError" in result.content


async def test_unknown_tool_is_named_with_known_ones() -> None:
    part = ToolCallPart("wether", "{}", tool_call_id="c1")
    result = await execute({"weather": weather}, part, timeout=1)
    assert (result.outcome, result.content) == ("failed", "There is no tool named 'wether'. Known tools: weather.")


# --- time -------------------------------------------------------------------------------------------------------------

RELEASE = threading.Event()


async def waits() -> None:
    await asyncio.get_running_loop().create_future()


def blocks() -> None:
    RELEASE.wait(60)


async def deaf() -> str:
    until = time.monotonic() + 1.2
    while time.monotonic() < until:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.1)
    return "late"


async def stubborn() -> str:
    """Answers an interruption with a value."""
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        return "too late"
    return "never"


@pytest.mark.parametrize("function", [waits, blocks, deaf, stubborn])
@pytest.mark.slow
async def test_slow_tool_times_out(function: Any) -> None:
    RELEASE.clear()
    at = time.monotonic()
    by_default = await call(function, seconds=0.1)
    assert time.monotonic() - at < 60
    assert (by_default.outcome, by_default.content) == ("failed", "The tool took longer than 0.1 s and was given up.")
    own = await call(tool(timeout=0.05)(function), seconds=60)
    assert own.content == "The tool took longer than 0.05 s and was given up."
    RELEASE.set()


async def test_only_cancellation_of_run_passes_through() -> None:
    task = asyncio.create_task(call(waits))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_plain_functions_run_in_a_thread() -> None:
    here = threading.get_ident()

    def where() -> bool:
        return threading.get_ident() != here

    assert (await call(where)).content == "true"


async def test_plain_function_can_return_awaitable() -> None:
    async def inner() -> str:
        return "awaited"

    def outer() -> Any:
        return inner()

    assert (await call(outer)).content == "awaited"
