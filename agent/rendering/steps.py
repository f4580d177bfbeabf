"""Names what tools and thoughts do, for people: titles of tools, their errors, and series of steps.

Models know tools only by their names, and read errors in English, which is the text that the history has."""

from collections.abc import Iterable, Mapping
from string import Formatter
from typing import Any
from urllib.parse import urlsplit

from agent.citations import READ, SEARCH, count_of_results, found_pages
from agent.i18n.text import N_, LocalizedText, _, decimal, ngettext
from agent.i18n.translator import Translator

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
    # agent.tools.builtin
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
    # agent.tools.documents
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
    # agent.tools.web, agent.fetch
    N_("The query is empty: say what to search for"),
    N_("The search does not answer now"),
    N_('The search gives no JSON: "json" must be one of search.formats in the settings of SearXNG'),
    N_("The search gets too many questions. Try again later"),
    N_("The search answered with status {status}"),
    N_("The search did not answer as SearXNG does"),
    N_("The search failed: {why}"),
    N_("This page has {count} parts, and no part {number}"),
    N_("The page of {host} {why}"),
    N_("{host} answered with status {status}"),
    N_("{host} gave {kind}; wanted is {wanted}"),
    N_("{host} took longer than {seconds} s"),
    N_("{host} is not on the public internet, so nothing is fetched from it"),
    N_("Couldn't reach {host}"),
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
    for literal, next_name, *_rest in [*Formatter().parse(sentence), ("", None)]:
        end = (rest.find(literal, 1) if literal else len(rest)) if name else 0
        if (name and end < 1) or not rest.startswith(literal, end):
            return None
        if name:
            fields[name] = rest[:end]
        rest, name = rest[end + len(literal) :], next_name or ""
    return None if rest else fields


ASK_USER = "ask_user"
"""The name of `agent.tools.ask_user`. Its question and the answer are shown as text."""
TITLES = {
    "calculate": N_("Calculate"),
    "current_time": N_("Current time"),
    "convert_units": N_("Convert units"),
    "search_files": N_("Search files"),
    "read_pages": N_("Read pages"),
    SEARCH: N_("Search the web"),
    READ: N_("Read a page"),
    ASK_USER: N_("Question"),
}
"""The titles of this program's own tools, by their names. All languages have them."""


def tool_title(name: str) -> str:
    """Return the title of the tool with this name. Another tool has the words of its name: "Set timer"."""
    if (title := TITLES.get(name)) is not None:
        return LocalizedText(title)
    words = " ".join(name.replace("_", " ").split())
    return words[:1].upper() + words[1:] or name


def call_title(name: str, arguments: Mapping[str, Any], result: str = "") -> str:
    """Return the title of a call. That of a tool for the web says what was searched or read, and the `result` how much.

    Of other tools, a `result` of a few words stands in the title. It is the text of a call that has ended well, or "".
    """
    if name == SEARCH and (query := _short(arguments.get("query"))):
        count = count_of_results(result)
        if count is None:
            return _("Search the web: {query}", query=query)
        return ngettext(
            "Searched the web for “{query}”: {count} result",
            "Searched the web for “{query}”: {count} results",
            count,
            query=query,
        )
    if name == READ and (url := _short(arguments.get("url"))):
        page = next(found_pages(READ, result), None)
        return _("Read {name}", name=_host(page.url if page else url))
    line = result.strip()
    if name in (SEARCH, READ, ASK_USER) or not 0 < len(line) <= RESULT_LENGTH or len(line.splitlines()) > 1:
        return tool_title(name)
    return _("{name} → {result}", name=tool_title(name), result=line)


def _short(value: object) -> str:
    text = " ".join(str(value or "").split())
    return text if len(text) <= REASON_LENGTH else text[: REASON_LENGTH - 1].rstrip() + "…"


def _host(url: str) -> str:
    try:
        return (urlsplit(url).hostname or url).removeprefix("www.")
    except ValueError:
        return url


REASONING = _("Reasoning")
LEAST_STEPS = 2
"""The steps of a series. A single step is shown alone."""
SHORTEST = 0.05
"""The shortest thought whose seconds are named. A shorter one would have taken 0.0 s."""
RESULT_LENGTH = 60
"""The most characters of a result that stands in the title of its call."""
REASON_LENGTH = 80
"""The most characters of a tool's error in the title of its call."""


def steps_name(thoughts: int, tools: int, failed: int, translator: Translator, *, seconds: float = 0.0) -> list[str]:
    """Return the parts of the name. The last one counts the failed tools, if there are any.

    `seconds` is what `total_seconds` returns, 0 if that is not known.
    """
    parts: list[str] = []
    if thoughts:
        thought = _("Thought {seconds} s", seconds=decimal(seconds, 1)) if seconds >= SHORTEST else _("Thought")
        parts.append(translator(thought))
    if tools:
        parts.append(translator(ngettext("{count} tool", "{count} tools", tools)))
    if failed:
        parts.append(translator(ngettext("{count} failed", "{count} failed", failed)))
    return parts


def total_seconds(thoughts: Iterable[float]) -> float:
    """Return how long the model has thought. It is the sum of what `thought_name` shows of each thought."""
    return sum(round(one, 1) for one in thoughts)


def thought_name(seconds: float, translator: Translator) -> str:
    """Return the name of one thought. `seconds` is its duration, 0 if that is not known."""
    duration = translator(_("{seconds} s", seconds=decimal(seconds, 1)))
    return f"{translator(REASONING)} · {duration}" if seconds >= SHORTEST else translator(REASONING)


def failure_reason(error: str) -> str:
    """Return the first line of a tool's error. It can be translated if it is of a tool of ours."""
    # The text of a tool's ValueError is written for people; the name of its class is not.
    line = " ".join(error.strip().partition("\n")[0].removeprefix("ValueError: ").split()).removesuffix(".")
    return localized_error(line)


def short_reason(reason: str, translator: Translator) -> str:
    """Return the reason of a failure, short enough for a title."""
    line = translator(reason)
    return line if len(line) <= REASON_LENGTH else line[: REASON_LENGTH - 1].rstrip() + "…"
