"""Sentences of the errors of our own tools, for people. Models read them in English, and the history has that text."""

from collections.abc import Mapping
from string import Formatter
from typing import Any

from agent.i18n import N_, LocalizedText

LONGEST_ERROR = 200
"""The most characters of an error that are looked at: more than a title shows."""

SENTENCES = (
    # of all tools: agent.tools, agent.suspension, agent.messages.repair
    N_("There is no tool named {name}. Known tools: {known}"),
    N_("none"),
    N_("The arguments do not fit: {why}"),
    N_("The arguments are not a JSON object: {text}"),
    N_("The tool took longer than {seconds} s and was given up"),
    N_("The tool was cancelled by something that it waited for"),
    N_("Cancelled before it finished"),
    N_("Cancelled; it could not be interrupted and was left running"),
    N_("The call was interrupted and has no result"),
    N_("Nobody can be asked here"),
    N_("The user did not answer. The reason given: {why}"),
    N_("The user did not answer"),
    N_("The user refused this call. The reason given: {why}"),
    N_("The user refused this call"),
    # agent.tools.arithmetic
    N_("the expression is longer than {count} characters"),
    N_("{expression} is not an arithmetic expression"),
    N_("{expression} divides by zero"),
    N_("the value of {expression} is too large"),
    N_("{expression} is nested too deeply"),
    N_("{expression} is not arithmetic"),
    N_("{call} has no value: {why}"),
    N_("{name} cannot take {count} value(s)"),
    N_("math domain error"),
    N_("a root of a negative number is not a real number"),
    N_("factorial needs a whole number that is not negative"),
    N_("True and False are not numbers here"),
    N_("unknown name {name}"),
    N_("unknown function {name}; there are {known}"),
    N_("write powers with **, not with ^"),
    # agent.tools.builtin
    N_("too many calculations are going on; try again"),
    N_("the expression takes too long to work out"),
    N_("the expression takes too much time or memory to work out"),
    N_("no time zone {name}; use an IANA name like 'Europe/Berlin' or 'UTC'"),
    N_("{unit} is a {kind} and {other} is a {other_kind}"),
    N_("{measure} cannot be converted: a finite number is needed"),
    N_("{measure} is below absolute zero"),
    N_("unknown unit {name}; there are {known}"),
    N_("length"),
    N_("mass"),
    N_("temperature"),
    N_("volume"),
    N_("speed"),
    # agent.documents.tools
    N_("The query is empty: give some words that the passages have"),
    N_("There is no file {name}: the files are {known}"),
    N_("{name} has no pages {first} to {last}: the files are {known}"),
    N_("{name} has no slides {first} to {last}: the files are {known}"),
    N_("{name} has no sheets {first} to {last}: the files are {known}"),
    N_("{name} has no sections {first} to {last}: the files are {known}"),
    N_("The first and the last page must be whole numbers: the files are {known}"),
    N_("The first and the last slide must be whole numbers: the files are {known}"),
    N_("The first and the last sheet must be whole numbers: the files are {known}"),
    N_("The first and the last section must be whole numbers: the files are {known}"),
    N_("{name} cannot be read now: {why}"),
    # agent.tools.mcp, agent.tools.rest
    N_("The tool failed"),
    N_("The MCP server {name} did not answer within {seconds} s"),
    N_("The MCP server {name} has ended"),
    N_("The MCP server {name} was given up"),
    N_("The MCP server {name} refused: {why}"),
    N_("The MCP server {name} cannot be reached: {why}"),
    N_("The server answered with status {status}: {text}"),
    N_("The server answered with {kind}, which is not JSON: {text}"),
    N_("The answer has nothing at {path}"),
    N_("The answer does not fit {path}: {why}"),
)
"""The errors without their full stops. Each field is a piece of the error, which can be such a sentence itself."""


def has_failed(result: Mapping[str, Any]) -> bool:
    """Return True if this content of a `tool_call_result` is of a call that failed, and not of one that was refused."""
    return bool(result["is_error"]) and not result.get("is_refused")


def refusal_reason(error: str) -> str:
    """Return why a person refused a call, from its result, or "" if they gave no reason."""
    return error.partition(" The reason given: ")[2]


def localized_error(error: str) -> str:
    """Return the line of an error so that it can be translated, or the line itself if it is not one of ours."""
    for sentence in SENTENCES:
        if (fields := _fields(sentence, error[:LONGEST_ERROR])) is not None:
            return LocalizedText(sentence, {name: localized_error(part) for name, part in fields.items()})
    return error


def _fields(sentence: str, error: str) -> dict[str, str] | None:
    """Return the pieces of the error that the fields of the sentence stand for. None: it is another sentence."""
    fields, rest, name = dict[str, str](), error, ""
    for literal, next_name, *_ in [*Formatter().parse(sentence), ("", None)]:
        end = (rest.find(literal, 1) if literal else len(rest)) if name else 0
        if (name and end < 1) or not rest.startswith(literal, end):
            return None
        if name:
            fields[name] = rest[:end]
        rest, name = rest[end + len(literal) :], next_name or ""
    return None if rest else fields
