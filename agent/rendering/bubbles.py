"""Types for a transcript: turns of bubbles, and bubbles of blocks of HTML.

`agent.rendering` alone makes the HTML, from an allow list of elements and attributes. A browser inserts it as it is.
The texts of messages are not in it: a page that copies or edits them asks for them.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NotRequired, TypedDict

BubbleKind = Literal[
    "user",
    "output_text",
    "reasoning",
    "tool_call",
    "tool_call_result",
    "error",
    "question",
    "file",
    "sources",
    "steps",
    "summary",
]
"""The kinds of the responses, and: a person's message or reply, a question of the model to a person, a file that the
model made, the sources of an answer, a row that folds the steps after it, and the summary that is sent instead of the
messages up to there."""
BubbleState = Literal["running", "done", "failed", "refused", "waiting"]
"""`waiting`: a person is asked. A call that waits is not folded away. A row of steps has failed if one of them has."""

Edit = list[Any]
"""`["bubble", n, bubble]` puts bubble n, `["blocks", n, first, blocks]` puts the blocks of bubble n from number `first`
on, `["tail", n, number, count, html]` puts this HTML in place of the last `count` UTF-16 code units of a block,
`["cut", n]` leaves the first n bubbles, `["column", n, edits]` makes these edits of column n, and `["turn", fields]`
replaces all other fields of the turn, but its columns only if it has some. They are made in their order."""


class Bubble(TypedDict):
    """A bubble. `blocks` are pieces of HTML, one for each block of its text."""

    kind: BubbleKind
    state: BubbleState
    blocks: list[str]
    title: NotRequired[str]
    """The name of a step, as plain text."""
    seconds: NotRequired[float]
    """The duration of a thought. If the step is running: the duration so far, from which the page counts on. It stays
    the same in edits until something else of the bubble has changed: count from when the bubble was put."""
    inside: NotRequired[bool]
    """True for a result that is shown inside the bubble before it."""
    steps: NotRequired[int]
    """The number of bubbles that a row of kind `steps` folds: those after it."""


class Versions(TypedDict):
    """The versions of a message or of its answer. `number` is the one that is shown, from 1.

    `ids` are those of messages: choosing one shows that version.
    """

    ids: list[str]
    number: int


class Button(TypedDict):
    """A button below an answer: its label, and what it does.

    "retry" and "continue" are about the message `entry`. "answer" sends `text` to the call `call` of the run `run`.
    "stop" ends one of several answers, "show" goes on with one, and "vote" is the `choice` among them.
    """

    label: str
    value: dict[str, Any]


class Waiting(TypedDict):
    """The wait for a model: its reason as plain text, or "", and its seconds so far.

    `number` differs for each wait of a turn: as long as it stays the same, the page counts on from the first seconds.
    """

    why: str
    seconds: float
    number: int


class CitedSource(TypedDict):
    """A source of an answer, for a page that shows it at a number in the text. All texts are plain.

    In a block, the number of a source has `data-source`, its `number`, and `data-passage`, the number of one of its
    `passages` from 1, or 0. It is a link to the `url`, or else a button that opens the document `title` at `page`. In
    the list of sources, such a button has `data-source` alone.
    """

    number: int
    title: str
    url: str
    page: int | None
    passages: list[str]


class Turn(TypedDict):
    """A person's message and the answer to it. `is_running` says that the answer is being written.

    `id` is the id of the message. Only a turn without a message has another one. A page shows the `buttons` of the
    last turn alone.
    """

    id: str
    bubbles: list[Bubble]
    is_running: bool
    caption: NotRequired[str]
    """HTML below the answer: its model in a `span` with the class `model`, how it ended and its figures."""
    model: NotRequired[str]
    """The id of the model."""
    waiting: NotRequired[Waiting]
    """Dots say that nothing comes from the model."""
    buttons: NotRequired[list[Button]]
    """The choices of a question, or "Try again" or "Continue"."""
    question_versions: NotRequired[Versions]
    answer_versions: NotRequired[Versions]
    can_branch: NotRequired[bool]
    """A new chat can begin with the messages up to this answer."""
    kept: NotRequired[str]
    """The sentence that the page shows while the message is edited: "2 files stay with this message"."""
    is_untyped: NotRequired[bool]
    """Nothing of the message was typed, but files were attached."""
    sources: NotRequired[list[CitedSource]]
    columns: NotRequired[list["Turn"]]
    """The answers of several models, without the message. The turn itself has only the message then."""
    name: NotRequired[str]
    """The name of a column: that of its model."""
    is_chosen: NotRequired[bool]
    """The chat goes on with this column."""
    can_steer: NotRequired[bool]
    """The model may take another message at its next step."""
    steered: NotRequired[list[str]]
    """The ids of the messages that have steered the answer, as far as they were stored when the turn was read."""
    text: NotRequired[str]
    """The answer as the model wrote it, which a click copies. Left out if a server gives it over a route."""


def edits(old: Turn, new: Turn) -> list[Edit]:
    """Return the edits that change one state of a turn into the next one."""
    out: list[Edit] = []
    before, after = old["bubbles"], new["bubbles"]
    for number, bubble in enumerate(after):
        last = before[number] if number < len(before) else None
        if last is bubble:
            continue
        if last is None or {**last, "blocks": 0} != {**bubble, "blocks": 0}:
            out.append(["bubble", number, bubble])
        elif last["blocks"] != bubble["blocks"]:
            out += _block_edits(number, last["blocks"], bubble["blocks"])
    if len(before) > len(after):
        out.append(["cut", len(after)])
    columns, others = old.get("columns", []), new.get("columns", [])
    is_same_number = len(columns) == len(others)
    for number, pair in enumerate(zip(columns, others, strict=False) if is_same_number else ()):
        if made := edits(*pair):
            out.append(["column", number, made])
    apart = ("bubbles", "columns") if is_same_number else ("bubbles",)
    fields = {key: value for key, value in new.items() if key not in apart}
    if fields != {key: value for key, value in old.items() if key not in apart}:
        out.append(["turn", fields if is_same_number else {"columns": [], **fields}])
    return out


def is_growth(made: Sequence[Edit]) -> bool:
    """Return True if these edits only let texts grow."""
    return all(is_growth(rest[1]) if kind == "column" else kind in ("blocks", "tail") for kind, *rest in made)


def _block_edits(number: int, old: Sequence[str], new: Sequence[str]) -> Iterator[Edit]:
    first = first_difference(old, new)
    if first < min(len(old), len(new)) and (same := _same_length(old[first], new[first])):
        dropped = len(old[first][same:].encode("utf-16-le", "surrogatepass")) // 2
        yield ["tail", number, first, dropped, new[first][same:]]
        first += 1
    if old[first:] != new[first:]:
        yield ["blocks", number, first, new[first:]]


def _same_length(one: str, other: str) -> int:
    """Return the length of what two texts begin with, without half a character at its end."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low - ("\ud800" <= one[low - 1 : low] <= "\udbff")


def first_difference(old: Sequence[str], new: Sequence[str]) -> int:
    """Return the number of the first block that differs."""
    pairs = zip(old, new, strict=False)
    return next((number for number, (one, other) in enumerate(pairs) if one != other), min(len(old), len(new)))
