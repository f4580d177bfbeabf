"""Questions of a suspended run in a terminal: a question with numbered choices, or the approval of a tool call."""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

from agent.suspension import Approve, Pending, Refuse

Read = Callable[[str, str], str | None]
"""Reads a line, with a prompt and an editable start. Returns None at the end of the input."""


def ask(pending: Pending, read: Read) -> str | Approve | Refuse | None:
    """Return the person's answer, or None without one."""
    print(f"? {_plain(pending.sentence)}", flush=True)
    if pending.kind == "question":
        for number, choice in enumerate(pending.choices, 1):
            print(f"  {number}. {_plain(choice)}", flush=True)
        line = read("answer> ", "")
        given = (line or "").strip()
        if given.isdecimal() and 1 <= int(given) <= len(pending.choices):
            return pending.choices[int(given) - 1]
        return given or None
    print(_plain(f"  {pending.name}({json.dumps(dict(pending.arguments), ensure_ascii=False)})"), flush=True)
    while (line := read("y, n or edit> ", "")) is not None:
        word, _, rest = line.strip().partition(" ")
        match word.lower():
            case "y" | "yes":
                return Approve()
            case "n" | "no":
                return Refuse(rest)
            case "e" | "edit":
                if (arguments := _edit_arguments(pending, read)) is not None:
                    return Approve(arguments)
            case "":
                return None
            case _:
                print("y approves it, n REASON refuses it, edit changes its arguments.")
    return None


def _edit_arguments(pending: Pending, read: Read) -> Mapping[str, Any] | None:
    line = read("arguments> ", json.dumps(dict(pending.arguments), ensure_ascii=False))
    try:
        arguments: object = json.loads(line or "")
    except ValueError as error:
        print(f"That is not JSON: {error}", file=sys.stderr)
        return None
    if not isinstance(arguments, dict):
        print("Arguments are a JSON object.", file=sys.stderr)
        return None
    return cast(dict[str, Any], arguments)


def _plain(text: str) -> str:
    """Remove control characters from a model's text, because they could control the terminal."""
    return "".join(letter for letter in text if letter.isprintable() or letter in "\n\t\u200d")
