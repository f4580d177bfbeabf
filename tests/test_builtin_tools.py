"""The tools without network: exact where exactness can be had, bounded, and clear when they refuse."""

import contextlib
import inspect
import math
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.tools import builtin
from agent.tools.builtin import calculate, convert_units, current_time


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("48 * 37", "1776"),
        ("(12.5 + 7) / 3", "6.5"),
        ("-2 ** 2", "-4"),
        ("2 ** -1", "0.5"),
        ("7 // 2 + 7 % 4", "6"),
        ("0.1 + 0.2", "0.3"),
        ("2**100", "1267650600228229401496703205376"),
        ("sqrt(144) + 2**10", "1036"),
        ("round(2/3, 2)", "0.67"),
        ("round(2.7)", "3"),
        ("max(1, 5, 3) - min(4, 2)", "3"),
        ("factorial(10) / gcd(12, 18)", "604800"),
        ("sin(pi / 2) + ln(e) + log(8, 2)", "5"),
        ("10 / 5", "2"),
        ("6 × 7 − 84 ÷ 2", "0"),  # noqa: RUF001
    ],
)
def test_calculate_gives_what_a_person_expects(expression: str, value: str) -> None:
    assert calculate(expression) == value


@given(st.integers(-(10**30), 10**30), st.integers(-(10**30), 10**30), st.sampled_from(["+", "-", "*", "//", "%"]))
def test_whole_numbers_are_exact(left: int, right: int, sign: str) -> None:
    if right == 0 and sign in ("//", "%"):
        with pytest.raises(ValueError, match="divides by zero"):
            calculate(f"({left}) {sign} ({right})")
        return
    exact = {"+": left + right, "-": left - right, "*": left * right}
    expected = exact[sign] if sign in exact else (left // right if sign == "//" else left % right)
    assert calculate(f"({left}) {sign} ({right})") == str(expected)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("1 / 0", "divides by zero"),
        ("0 ** -1", "divides by zero"),
        ("9**9**9", "too large"),
        ("10**999 * 10**999", "too large"),
        ("factorial(1000000)", "too large"),
        ("factorial(2.5)", "whole number"),
        ("1e308 * 10", "too large"),
        ("2.0 ** 100000", "too large"),
        ("exp(100000)", "too large"),
        ("(-8) ** 0.5", "not a real number"),
        ("sqrt(-1)", r"sqrt\(-1\) has no value"),
        ("sin(1, 2)", "cannot take 2"),
        ("round(1.5, 2, 3)", "cannot take 3"),
        ("x + 1", "unknown name 'x'"),
        ("open('x')", "unknown function 'open'"),
        ("().__class__", "not arithmetic"),
        ("[1, 2][0]", "not arithmetic"),
        ("'a' * 3", "not arithmetic"),
        ("1 < 2", "not arithmetic"),
        ("True + 1", "not numbers"),
        ("__import__('os').system('true')", "not arithmetic|unknown function"),
        ("max(*[1, 2])", "not arithmetic"),
        ("round(number=1)", "unknown function|not arithmetic|keyword"),
        ("what is 2 + 2", "not arithmetic"),
        ("two plus two", "not an arithmetic expression"),
        ("2 ^ 8", "powers with"),
        ("", "not an arithmetic expression"),
        ("1+" * 300 + "1", "longer than"),
        ("(" * 240 + "1" + ")" * 240, "not an arithmetic|nested"),
    ],
)
def test_calculate_refuses_at_once_and_says_why(expression: str, reason: str) -> None:
    start = time.perf_counter()
    with pytest.raises(ValueError, match=reason):
        calculate(expression)
    assert time.perf_counter() - start < 0.5


@given(st.text(max_size=60) | st.text(alphabet="0123456789+-*/%().e ,sqrtpi", max_size=60))
def test_calculate_raises_nothing_but_value_errors(expression: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(calculate(expression), str)


def test_current_time_names_day_zone_and_offset() -> None:
    assert re.fullmatch(r"[A-Z][a-z]+day, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC \(UTC\+00:00\)", current_time())
    assert current_time("Asia/Tokyo").endswith("JST (UTC+09:00)")
    assert current_time(" Asia/Kolkata ").endswith("IST (UTC+05:30)")


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd", "/etc/passwd", "Europe", "Tokyo\0"])
def test_current_time_refuses_what_is_no_zone(zone: str) -> None:
    with pytest.raises(ValueError, match="no time zone"):
        current_time(zone)


@pytest.mark.parametrize(
    ("value", "source", "target", "text"),
    [
        (10, "km", "miles", "10 km = 6.21371 mi"),
        (72, "Fahrenheit", "celsius", "72 °F = 22.2222 °C"),
        (-40, "°C", "degrees F", "-40 °C = -40 °F"),
        (0, "celsius", "K", "0 °C = 273.15 K"),
        (5, "pounds", "kilograms", "5 lb = 2.26796 kg"),
        (6, "feet", "cm", "6 ft = 182.88 cm"),
        (1, "US gallon", "liters", "1 gal = 3.78541 l"),
        (100, "km/h", "mph", "100 km/h = 62.1371 mph"),
        (1, "nautical mile", "m", "1 nmi = 1852 m"),
        (8, "fl. oz", "cups", "8 fl oz = 1 cup"),
        (12, "inches", "feet", "12 in = 1 ft"),
        (5e9, "mm", "km", "5000000000.00 mm = 5000 km"),
    ],
)
def test_units(value: float, source: str, target: str, text: str) -> None:
    assert convert_units(value, source, target) == text


@pytest.mark.parametrize(
    ("value", "source", "target", "reason"),
    [
        (1, "km", "kg", "'km' is a length and 'kg' is a mass"),
        (1, "parsec", "km", "unknown unit 'parsec'"),
        (1, "", "km", "unknown unit"),
        (math.nan, "m", "km", "finite"),
        (math.inf, "m", "km", "finite"),
        (-300, "celsius", "kelvin", "absolute zero"),
    ],
)
def test_units_refuse_and_say_why(value: float, source: str, target: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        convert_units(value, source, target)


def test_every_unit_converts_back_to_itself() -> None:
    for unit, _ in builtin._TABLE:
        for other, _ in builtin._TABLE:
            if unit.kind == other.kind:
                there = float(convert_units(300, unit.symbol, other.symbol).split(" = ")[1].split(" ")[0])
                back = float(convert_units(there, other.symbol, unit.symbol).split(" = ")[1].split(" ")[0])
                assert back == pytest.approx(300, rel=1e-4), (unit, other)


@pytest.mark.parametrize("tool", [calculate, current_time, convert_units])
def test_a_schema_can_be_made_from_signature_and_docstring(tool: object) -> None:
    from pydantic_ai import Tool

    assert callable(tool)
    definition = Tool(tool, require_parameter_descriptions=True).tool_def
    assert definition.description
    assert set(definition.parameters_json_schema["properties"]) == set(inspect.signature(tool).parameters)
