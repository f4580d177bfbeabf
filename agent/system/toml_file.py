"""Reads configuration: TOML files and variables, checked by pydantic. An error names the file, the line and the key."""

import re
import tomllib
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, to_json

from agent.errors import AgentError, ConfigError

CLOSED = ConfigDict(extra="forbid")
"""Refuses unknown keys, because they are typing errors and would otherwise be ignored."""

MOST_MISTAKES = 20
LONGEST_SHOWN = 100
"""The most mistakes in one error, and the most characters of a wrong value."""

Way = tuple[str | int, ...]
"""The path to a value: keys of tables and indexes of lists."""

_T = TypeVar("_T")
_M = TypeVar("_M", bound=BaseModel)
_EXPECTED = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "string": "text in quotes",
    "path": "a path in quotes",
    "date": "a date",
    "list": "a list",
    "tuple": "a list",
    "dict": "a table",
    "model": "a table",
    "dataclass": "a table",
}
_LIMITS = {"greater_than_equal": "at least", "greater_than": "more than", "less_than_equal": "at most"}
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
# Names that look like secrets, and values that begin like a vendor's key.
_SECRET_NAME = r"(?i)(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS)S?$"
_NOT_SECRET_NAME = r"(?i)(?>.*?(?:MAX|CONTEXT|OUTPUT)).*TOKENS$"
_SECRET_VALUE = r"\b(sk-|hf_|xai-|AIza|gsk_|ghp_|github_pat_|AKIA)[A-Za-z0-9_-]{12,}"


def must(what: str, holds: str | Callable[[Any], object], kind: Callable[[Any], Any] = AfterValidator) -> Any:
    """Return a validator that says "must `what`" unless a value matches the pattern `holds`, or `holds` it is true."""

    def check(value: Any) -> Any:
        if not (re.fullmatch(holds, value) if isinstance(holds, str) else holds(value)):
            raise ValueError(f"must {what}")
        return value

    return kind(check)


NUMBER = must("be a number", lambda value: not isinstance(value, bool), BeforeValidator)
"""Refuses true and false, which pydantic takes for 1 and 0."""


def is_secret(name: str, value: str = "") -> bool:
    """Return True if the name or the value looks like a secret."""
    by_name = re.search(_SECRET_NAME, name) and not re.match(_NOT_SECRET_NAME, name)
    return bool(by_name or re.search(_SECRET_VALUE, value))


class TomlFile:
    """A TOML file with configuration. `table` is its content.

    An `optional` file can be missing. `strict` forbids conversions, such as of "1" to 1. Values below a key in `hidden`
    are never quoted. `name` is its name in errors. Raises `ConfigError`.
    """

    def __init__(
        self, path: Path, *, optional: bool = False, strict: bool = False, hidden: Collection[str] = (), name: str = ""
    ) -> None:
        self._name, self._strict, self._hidden = name or path.name, strict, hidden
        try:
            text = "" if optional and not path.exists() else path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self._name} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
        self._lines = text.split("\n")
        try:
            self.table: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            line = self._first(len(self._lines), ("",))[0] + 1
            what = re.sub(r" \(at [^()]*\)$", "", str(error))
            raise ConfigError(f"{self._name}, line {line}: not valid TOML: {what}.") from error

    def check(self, kind: type[_T], value: object, *way: str | int, at: str = "") -> _T:
        """Return `value`, which is at `way` in this file, as a `kind`. Raises one `ConfigError` with all mistakes.

        `at` names the value instead of its path.
        """
        # As JSON, because its lists can be tuples even if conversions are forbidden.
        try:
            return _adapter(kind).validate_json(to_json(value), strict=self._strict)
        except ValidationError as error:
            found = error.errors(include_url=False)[:MOST_MISTAKES]
            mistakes = [_describe(one, kind, value, way, at, self._hidden) for one in found]
            lines = sorted({(self.line(*to), what) for to, what in mistakes})
            raise ConfigError("\n".join(f"{self._name}, line {line}: {what}." for line, what in lines)) from None
        except AgentError as error:
            raise self.error(str(error), *way) from error

    def error(self, what: str, *way: str | int) -> ConfigError:
        """Return an error about the value at `way`."""
        return ConfigError(f"{self._name}, line {self.line(*way)}: {what.rstrip('.')}.")

    def line(self, *way: str | int) -> int:
        """Return the line where the value at `way` begins, or where the table begins that lacks it.

        tomllib keeps no positions. But the first lines of a file are valid TOML exactly if the cut splits no statement.
        So the statement that adds a key begins after the last valid cut without it.
        """
        while way and not _has(self.table, way):
            way = way[:-1]
        counts = range(len(self._lines) + 1)
        last = bisect_left(counts, True, key=lambda count: _has(self._first(count)[1], way))
        return self._first(last - 1)[0] + 1 if way else 1

    def _first(self, count: int, ends: Sequence[str] = ("", "\n]")) -> tuple[int, dict[str, Any]]:
        """Return the most of the first `count` lines that are valid TOML, and their table. A list can be open."""
        for number in range(count, 0, -1):
            for end in ends:
                try:
                    return number, tomllib.loads("\n".join(self._lines[:number]) + end)
                except tomllib.TOMLDecodeError:
                    continue
        return 0, {}


def check_environment(kind: type[_M], env: Mapping[str, str]) -> _M:
    """Return the variables that are aliases in this model; an empty one counts as unset. Raises `ConfigError`."""
    names = [str(field.alias) for field in kind.model_fields.values()]
    given = {name: env[name] for name in names if env.get(name)}
    try:
        return kind.model_validate_json(to_json(given))
    except ValidationError as error:
        mistakes = [_describe(one, kind, given)[1] for one in error.errors(include_url=False)]
        raise ConfigError("\n".join(f"{what}." for what in mistakes)) from None


@cache
def _adapter(kind: type[_T]) -> TypeAdapter[_T]:
    return TypeAdapter(kind)


def _has(value: Any, way: Sequence[str | int]) -> bool:
    for part in way:
        if isinstance(value, dict) and part in value:
            value = cast(dict[Any, Any], value)[part]
        elif isinstance(value, list) and isinstance(part, int) and part < len(cast(list[Any], value)):
            value = cast(list[Any], value)[part]
        else:
            return False
    return True


def _describe(
    error: ErrorDetails, kind: Any, value: object, before: Way = (), at: str = "", hidden: Collection[str] = ()
) -> tuple[Way, str]:
    """Return the path to a mistake, and a sentence: the name, what is expected, and the value unless it is secret."""
    type_, loc = error["type"], error["loc"]
    way: Way = ()
    for part in loc:  # without the parts that pydantic adds, such as the alternatives of a union
        way = (*way, part) if _has(value, (*way, part)) else way
    if type_ == "missing":
        way = (*way, loc[-1])
    keys = [str(part) for part in (way if at else (*before, *way)) if isinstance(part, str)]
    name = ".".join(keys)
    if type_ in _UNKNOWN:
        section = f"section [{name}]" if isinstance(error["input"], dict) and len(keys) == 1 else f"key {name!r}"
        what = f"unknown {section}{_hint(kind, way)}"
    else:
        what = f"{name} {_expected(error)}{_shown(keys, error['input'], hidden) if type_ != 'missing' else ''}"
    return (*before, *way), f"{at}: {what}" if at else what


def _expected(error: ErrorDetails) -> str:
    first, _, rest = error["type"].partition("_")
    if first in _EXPECTED and rest.startswith(("type", "parsing", "from")):
        return f"must be {_EXPECTED[first]}"
    if limit := _LIMITS.get(error["type"]):
        [most] = error.get("ctx", {}).values()
        return f"must be {limit} {most:g}"
    if error["type"] == "missing":
        return "is missing"
    what = error["msg"].removeprefix("Value error, ").replace(" after validation", "")
    return re.sub(r"^\w+ should ", "must ", what)


def _shown(keys: Sequence[str], value: object, hidden: Collection[str]) -> str:
    """Return the value for a message, "" if it is not a single value or could be a secret."""
    secret = any(key in hidden or is_secret(key, str(value)) for key in keys) or "@" in str(value)  # of a URL
    short = isinstance(value, str | int | float) and len(str(value)) <= LONGEST_SHOWN
    return f", not {value!r}" if short and not secret else ""


def _hint(kind: Any, way: Way) -> str:
    """Return the known key that is close to the last one of `way`, or all known keys of its table."""
    schema: dict[str, Any] = _adapter(kind).json_schema()
    node: dict[str, Any] = schema
    for part in way[:-1]:
        items: object = node.get("items") or node.get("additionalProperties") or {}
        node = cast(dict[str, Any], node.get("properties", {}).get(part) or items)
        ref: str = next((one["$ref"] for one in (node, *node.get("anyOf", ())) if "$ref" in one), "")
        node = schema["$defs"][ref.rpartition("/")[2]] if ref else node
    known = list(node.get("properties", ()))
    if close := get_close_matches(str(way[-1]), known, 1, 0.7):
        return f"; perhaps {close[0]!r} is meant"
    return f"; known are {', '.join(known)}" if known else ""
