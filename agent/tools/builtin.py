"""Tools that need no network: arithmetic, the clock, units of measure. Plain functions that know nothing of models."""

import json
import math
from datetime import datetime
from threading import BoundedSemaphore
from typing import NamedTuple
from zoneinfo import ZoneInfo

from agent.files.sandbox import SandboxJob, SandboxProgram
from agent.tools import arithmetic

MAX_NAME = 100
"""The most characters of the name of a unit or a time zone."""

_CALCULATOR = SandboxProgram(arithmetic, memory=128 * 1024 * 1024, seconds=2, timeout_seconds=5)
"""Each calculation has its own process, which takes 25 ms. Unlike a thread, a process can be killed."""
_SANDBOX_SLOTS = BoundedSemaphore(4)
"""The most calculations at the same time: a model can ask for hundreds at once."""


def calculate(expression: str) -> str:
    """Work out an arithmetic expression exactly.

    Knows + - * / // % **, parentheses, the constants pi and e, and the functions abs, round, min, max, sqrt, exp,
    log, log2, log10, sin, cos, tan, asin, acos, atan, degrees, radians, floor, ceil, factorial and gcd.

    Args:
        expression: What to work out, for example "(12.5 + 7) / 3" or "sqrt(2) * 10**3".

    Returns:
        The value as text.

    Raises:
        ValueError: It is not arithmetic, uses an unknown name, has no real value, or its value is too large.
    """
    if not _SANDBOX_SLOTS.acquire(timeout=_CALCULATOR.timeout_seconds):
        raise ValueError("too many calculations are going on; try again")
    try:
        status, out = SandboxJob(_CALCULATOR).run(
            expression[: arithmetic.MAX_EXPRESSION + 1].encode("utf-8", "replace")
        )
    except TimeoutError as error:
        raise ValueError("the expression takes too long to work out") from error
    except ValueError as error:
        raise ValueError("the expression takes too much time or memory to work out") from error
    finally:
        _SANDBOX_SLOTS.release()
    if status:
        raise ValueError("the expression takes too much time or memory to work out")
    result: dict[str, str] = json.loads(out)
    if "error" in result:
        raise ValueError(result["error"])
    return result["value"]


def current_time(timezone: str = "UTC") -> str:
    """Tell the date, the weekday and the time now.

    Args:
        timezone: An IANA time zone, for example "Europe/Berlin" or "Asia/Tokyo".

    Returns:
        Weekday, date, time, zone and its distance from UTC.

    Raises:
        ValueError: There is no such time zone.
    """
    timezone = timezone[:MAX_NAME]
    try:
        zone = ZoneInfo(timezone.strip())
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"no time zone {timezone!r}; use an IANA name like 'Europe/Berlin' or 'UTC'") from error
    now = datetime.now(zone)
    offset = now.strftime("%z")
    # Weekdays come from a table: strftime's %A follows the process's locale, but the model reads English.
    return f"{_WEEKDAYS[now.weekday()]}, {now:%Y-%m-%d %H:%M:%S %Z} (UTC{offset[:3]}:{offset[3:5]})"


def convert_units(value: float, from_unit: str, to_unit: str) -> str:
    """Convert a measure from one unit to another.

    Length, mass, temperature, volume and speed.

    Args:
        value: How many of `from_unit`.
        from_unit: The unit to convert from, by symbol or English name, for example "km", "pounds" or "fahrenheit".
        to_unit: The unit to convert to, of the same kind.

    Returns:
        For example "10 km = 6.21371 mi".

    Raises:
        ValueError: A unit is unknown, the two measure different things, or the value is not a finite number.
    """
    from_unit, to_unit = from_unit[:MAX_NAME], to_unit[:MAX_NAME]
    source, target = _unit(from_unit), _unit(to_unit)
    if source.kind != target.kind:
        raise ValueError(f"{from_unit!r} is a {source.kind} and {to_unit!r} is a {target.kind}")
    base = value * source.factor + source.offset
    result = (base - target.offset) / target.factor
    if not math.isfinite(result):
        raise ValueError(f"{value!r} {from_unit} cannot be converted: a finite number is needed")
    if source.kind == "temperature" and base < -1e-9:
        raise ValueError(f"{value!r} {from_unit} is below absolute zero")
    return f"{_short(value)} {source.symbol} = {_short(result)} {target.symbol}"


# --- time and units -------------------------------------------------------------------------------------------------

_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class _Unit(NamedTuple):
    """A unit. The base unit of its kind (m, kg, K, l, m/s) follows from: base = value * factor + offset."""

    kind: str
    symbol: str
    factor: float
    offset: float = 0.0


_TABLE: tuple[tuple[_Unit, str], ...] = (
    (_Unit("length", "mm", 0.001), "millimeter millimetre"),
    (_Unit("length", "cm", 0.01), "centimeter centimetre"),
    (_Unit("length", "m", 1), "meter metre"),
    (_Unit("length", "km", 1000), "kilometer kilometre"),
    (_Unit("length", "in", 0.0254), 'inch inches "'),
    (_Unit("length", "ft", 0.3048), "foot feet '"),
    (_Unit("length", "yd", 0.9144), "yard"),
    (_Unit("length", "mi", 1609.344), "mile"),
    (_Unit("length", "nmi", 1852), "nauticalmile"),
    (_Unit("mass", "mg", 1e-6), "milligram"),
    (_Unit("mass", "g", 0.001), "gram gramme"),
    (_Unit("mass", "kg", 1), "kilogram kilo"),
    (_Unit("mass", "t", 1000), "tonne metricton"),
    (_Unit("mass", "oz", 0.028349523125), "ounce"),
    (_Unit("mass", "lb", 0.45359237), "pound lbs"),
    (_Unit("mass", "st", 6.35029318), "stone"),
    (_Unit("temperature", "°C", 1, 273.15), "c celsius centigrade degc"),
    (_Unit("temperature", "°F", 5 / 9, 459.67 * 5 / 9), "f fahrenheit degf"),
    (_Unit("temperature", "K", 1), "k kelvin"),
    (_Unit("volume", "ml", 0.001), "milliliter millilitre cc"),
    (_Unit("volume", "cl", 0.01), "centiliter centilitre"),
    (_Unit("volume", "l", 1), "liter litre"),
    (_Unit("volume", "m³", 1000), "m3 cubicmeter cubicmetre"),
    (_Unit("volume", "tsp", 0.00492892159375), "teaspoon"),
    (_Unit("volume", "tbsp", 0.01478676478125), "tablespoon"),
    (_Unit("volume", "fl oz", 0.0295735295625), "floz fluidounce"),
    (_Unit("volume", "cup", 0.2365882365), "cup"),
    (_Unit("volume", "pt", 0.473176473), "pint"),
    (_Unit("volume", "qt", 0.946352946), "quart"),
    (_Unit("volume", "gal", 3.785411784), "gallon"),
    (_Unit("speed", "m/s", 1), "mps meterpersecond metrepersecond meterspersecond metrespersecond"),
    (_Unit("speed", "km/h", 1 / 3.6), "kmh kph kilometerperhour kilometreperhour kilometersperhour kilometresperhour"),
    (_Unit("speed", "mph", 0.44704), "mi/h mileperhour milesperhour"),
    (_Unit("speed", "kn", 1852 / 3600), "knot kt"),
    (_Unit("speed", "ft/s", 0.3048), "fps footpersecond feetpersecond"),
)
_UNITS: dict[str, _Unit] = {
    name: unit for unit, names in _TABLE for name in (unit.symbol.replace(" ", "").lower(), *names.split())
}


def _unit(name: str) -> _Unit:
    """Return the unit with this symbol or name, singular or plural. Ignores case, spaces, underscores and "degrees"."""
    key = "".join(character for character in name.lower() if character not in " _-.").removeprefix("degrees")
    for candidate in (key, key.removesuffix("s"), key.removeprefix("degree"), key.removeprefix("us")):
        if candidate in _UNITS:
            return _UNITS[candidate]
    known = ", ".join(unit.symbol for unit, _ in _TABLE)
    raise ValueError(f"unknown unit {name!r}; there are {known}")


def _short(number: float) -> str:
    return f"{number:.6g}" if abs(number) < 1e6 else f"{number:,.2f}".replace(",", "")
