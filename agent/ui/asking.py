"""What a suspended answer asks of people, and what their words mean: pure, from the calls that have no result."""

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

Call = Mapping[str, Any]
"""`{id, name, arguments}`, as a `tool_call` response has it."""

ASK_USER = "ask_user"
ALLOW, REFUSE = "Allow", "Refuse"


def is_question(call: Call) -> bool:
    """Whether the model asks something; else it waits for leave to call a tool."""
    return call["name"] == ASK_USER


def question(call: Call) -> str:
    """The question that the model asks."""
    return str(call["arguments"].get("question") or "")


def options(call: Call) -> list[dict[str, str]]:
    """The buttons under the question: the answers that the model proposes, or leave and refusal."""
    labels: Sequence[Any] = (call["arguments"].get("choices") or []) if is_question(call) else (ALLOW, REFUSE)
    return [{"label": str(label), "value": str(label)} for label in labels]


def asked(call: Call) -> str:
    """The bubble that asks, as HTML."""
    if is_question(call):
        hint = "Choose, or write your answer below." if options(call) else "Write your answer below."
        text = f"<p>{html.escape(question(call))}</p>"
    else:
        hint = "Or write below: other arguments as JSON, or why not."
        arguments = html.escape(json.dumps(call["arguments"], ensure_ascii=False, indent=2, default=str))
        text = f"<p>May <b>{html.escape(str(call['name']))}</b> run with this?</p><pre>{arguments}</pre>"
    return f'<div class="asking" role="group">{text}<p class="caption">{hint}</p></div>'
