"""The tools that need no network: arithmetic, the clock, units of measure. Plain functions; knows nothing of models."""

import ast
import math
import operator
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

MAX_EXPRESSION = 500
MAX_DIGITS = 1_000


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
    if len(expression) > MAX_EXPRESSION:
        raise ValueError(f"the expression is longer than {MAX_EXPRESSION} characters")
    try:
        tree = ast.parse(expression.strip().translate(_SIGNS), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError(f"{expression!r} is not an arithmetic expression") from error
    try:
        return _show(_value(tree.body))
    except ZeroDivisionError as error:
        raise ValueError(f"{expression!r} divides by zero") from error
    except OverflowError as error:
        raise ValueError(f"the value of {expression!r} is too large") from error
    except RecursionError as error:
        raise ValueError(f"{expression!r} is nested too deeply") from error


def current_time(timezone: str = "UTC") -> str:
    """Tell the date, the weekday and the time now.

    Args:
        timezone: An IANA time zone, for example "Europe/Berlin" or "Asia/Tokyo".

    Returns:
        Weekday, date, time, zone and its distance from UTC.

    Raises:
        ValueError: There is no such time zone.
    """
    try:
        zone = ZoneInfo(timezone.strip())
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"no time zone {timezone!r}; use an IANA name like 'Europe/Berlin' or 'UTC'") from error
    now = datetime.now(zone)
    offset = now.strftime("%z")
    # Weekdays by table: strftime's %A follows the process's locale, and the model reads English.
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


# --- calculate ------------------------------------------------------------------------------------------------------

Number = int | float

_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-"})  # noqa: RUF001  as people and models type them
_CONSTANTS: dict[str, float] = {"pi": math.pi, "e": math.e}
_UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def _power(base: Number, exponent: Number) -> Number:
    """`base ** exponent`, refused before it is worked out where the whole number would be enormous."""
    if isinstance(base, int) and isinstance(exponent, int):
        if exponent > 0 and abs(base) > 1 and exponent * math.log10(abs(base)) > MAX_DIGITS:
            raise OverflowError
        return base**exponent
    result: object = base**exponent
    if not isinstance(result, int | float):
        raise ValueError("a root of a negative number is not a real number")
    return result


def _factorial(number: Number) -> int:
    if not isinstance(number, int) or number < 0:
        raise ValueError("factorial needs a whole number that is not negative")
    if number > 400:  # 400! has 869 digits
        raise OverflowError
    return math.factorial(number)


def _round(number: Number, digits: Number = 0) -> Number:
    return round(number, int(digits)) if digits else round(number)


def _gcd(*numbers: Number) -> int:
    return math.gcd(*(int(number) for number in numbers))


_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: left / right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "round": _round,
    "min": min,
    "max": max,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "ln": math.log,
    "log2": math.log2,
    "log10": math.log10,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "asin": math.asin,
    "acos": math.acos,
    "atan": math.atan,
    "degrees": math.degrees,
    "radians": math.radians,
    "floor": math.floor,
    "ceil": math.ceil,
    "factorial": _factorial,
    "gcd": _gcd,
}


def _value(node: ast.expr) -> Number:
    """The value of one node of the tree; anything that is not plain arithmetic is refused by name."""
    match node:
        case ast.Constant(value=bool()):
            raise ValueError("True and False are not numbers here")
        case ast.Constant(value=int() | float() as number):
            return _bounded(number)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.Name(id=name):
            raise ValueError(f"unknown name {name!r}")
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _bounded(_BINARY[type(op)](_value(left), _value(right)))
        case ast.BinOp(op=ast.BitXor()):
            raise ValueError("write powers with **, not with ^")
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_call(name, [_value(argument) for argument in args]))
        case ast.Call(func=ast.Name(id=name)):
            raise ValueError(f"unknown function {name!r}; there are {', '.join(sorted(_FUNCTIONS))}")
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is not arithmetic")


def _call(name: str, arguments: list[Number]) -> Number:
    try:
        return _FUNCTIONS[name](*arguments)
    except TypeError as error:
        raise ValueError(f"{name} cannot take {len(arguments)} value(s)") from error
    except ValueError as error:
        shown = ", ".join(_show(argument) for argument in arguments)
        raise ValueError(f"{name}({shown}) has no value: {error}") from error


def _bounded(number: Number) -> Number:
    """The number itself, unless it is not finite or so large that a chain of products would get dear."""
    if isinstance(number, float):
        if not math.isfinite(number):
            raise OverflowError
    elif number.bit_length() > MAX_DIGITS * math.log2(10):
        raise OverflowError
    return number


def _show(number: Number) -> str:
    """A float to 15 significant digits, because 0.1 + 0.2 is 0.3 to everybody but a computer."""
    return f"{number:.15g}" if isinstance(number, float) else str(number)


# --- time and units -------------------------------------------------------------------------------------------------

_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class _Unit(NamedTuple):
    """`factor` and `offset` lead to the base unit of its kind (m, kg, K, l, m/s): base = value * factor + offset."""

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
    """The unit of that symbol or name, in singular or plural, whatever its case, spaces, underscores or degree sign."""
    key = "".join(character for character in name.lower() if character not in " _-.").removeprefix("degrees")
    for candidate in (key, key.removesuffix("s"), key.removeprefix("degree"), key.removeprefix("us")):
        if candidate in _UNITS:
            return _UNITS[candidate]
    known = ", ".join(unit.symbol for unit, _ in _TABLE)
    raise ValueError(f"unknown unit {name!r}; there are {known}")


def _short(number: float) -> str:
    return f"{number:.6g}" if abs(number) < 1e6 else f"{number:,.2f}".replace(",", "")
