"""Makes docs/limits.md: `PYTHONPATH=. python .ci/limits_page.py > docs/limits.md`."""

from dataclasses import dataclass
from typing import Any

from agent.limits import FAILURE_POLICIES

PAGE = """# Limits and failures

What can go wrong in a run, and what happens then. The limits are the fields of `Limits`. A run that ends early gives
the reason in `result.note.detail`. "Ask the user" needs a user: `Limits(interactive=...)` says whether there is one. By
default there is one if the model has the tool `ask_user`. The run is then suspended, and
`agent.resume(result.suspension, "Go on")` allows the amount of the limit once more. Without a user the run ends.

`PYTHONPATH=. python .ci/limits_page.py` makes this page from the table in `agent/limits.py`. Change it there.

{table}"""


def page() -> str:
    """Return the text of docs/limits.md."""
    return PAGE.format(table=table())


def table() -> str:
    """Return the table of all failures in Markdown."""
    lines = ["| kind | when | what happens | the model is told | the run ends with |", "|---|---|---|---|---|"]
    for kind, policy in FAILURE_POLICIES.items():
        sentence, note = policy.sentence.format_map(_Names()), policy.note.format_map(_Names())
        happens = ", then ".join(policy.actions)
        lines.append(f"| {kind.replace('_', ' ')} | {policy.when} | {happens} | {note} | {sentence} |")
    return "\n".join(lines) + "\n"


class _Names(dict[str, Any]):
    """Replaces each field of a template with its own name."""

    def __missing__(self, name: str) -> "_Name":
        return _Name(name)


@dataclass(frozen=True, slots=True)
class _Name:
    name: str

    def __format__(self, spec: str) -> str:
        return f"`{self.name}`"


if __name__ == "__main__":
    print(page(), end="")
