"""Arithmetic in the sandbox. The cost of each value is limited before it is computed. Knows nothing of tools."""

import ast
import json
import math
import operator
import sys
from collections.abc import Callable
from typing import Any

Number = int | float

MAX_EXPRESSION = 500
"""The most characters of an expression."""
MAX_DIGITS = 1_000
"""The most digits of any intermediate value."""


def evaluate(expression: str) -> str:
    """Return the value as text. Raises `ValueError` with a sentence."""
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


def main(_: list[str]) -> int:
    """Read an expression from stdin and write JSON: its `value`, or an `error` with the reason why it has none."""
    try:
        result = {"value": evaluate(sys.stdin.buffer.read().decode())}
    except ValueError as error:
        result = {"error": str(error)}
    json.dump(result, sys.stdout)
    return 0


_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-"})  # noqa: RUF001  as people and models type them
_CONSTANTS: dict[str, float] = {"pi": math.pi, "e": math.e}
_UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def _power(base: Number, exponent: Number) -> Number:
    """Return `base ** exponent`. An enormous whole number is refused before it is computed."""
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
    """Call `round` with limited `digits`: more digits change nothing, but 30 million of them take half a minute."""
    return round(number, max(-MAX_DIGITS - 1, min(int(digits), MAX_DIGITS))) if digits else round(number)


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
    """Return the value of one node of the tree. Raises `ValueError` for anything but plain arithmetic."""
    match node:
        case ast.Constant(value=bool()):
            raise ValueError("True and False are not numbers here")
        case ast.Constant(value=int() | float() as number):
            return _check_size(number)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.Name(id=name):
            raise ValueError(f"unknown name {name!r}")
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _check_size(_BINARY[type(op)](_value(left), _value(right)))
        case ast.BinOp(op=ast.BitXor()):
            raise ValueError("write powers with **, not with ^")
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _check_size(_call(name, [_value(argument) for argument in args]))
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


def _check_size(number: Number) -> Number:
    """Return the number itself, unless it is not finite or so large that a chain of products would be expensive."""
    if isinstance(number, float):
        if not math.isfinite(number):
            raise OverflowError
    elif number.bit_length() > MAX_DIGITS * math.log2(10):
        raise OverflowError
    return number


def _show(number: Number) -> str:
    """Return the number as text. A float gets 15 significant digits: for people, 0.1 + 0.2 is 0.3."""
    return f"{number:.15g}" if isinstance(number, float) else str(number)
