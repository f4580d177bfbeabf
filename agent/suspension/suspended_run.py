"""A suspended run as a value: the questions and approvals it waits for, the answers, and its state for resuming."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from json import dumps
from typing import Any, Literal

from pydantic_ai.messages import ModelMessage, ToolCallPart, ToolReturnPart

from agent.errors import InputError, SuspensionError, SuspensionReason
from agent.history import new_id, now
from agent.i18n.text import N_, LocalizedText, _, joined
from agent.keyword_arguments import explains_fields, shown
from agent.limits import BudgetUsed, Limit, Limits, explain_limit
from agent.messages.repair import repair, unanswered_calls
from agent.responses import fix_surrogates
from agent.tools.function_tools import Tool, ask_user, with_note

SENTENCES: Mapping[SuspensionReason, str] = {
    "tampered": N_("This is not a suspended run as it was sealed: something in it was changed."),
    "truncated": N_("This suspended run is not whole: its end is missing."),
    "expired": N_("This suspended run has expired."),
    "used": N_("This suspended run was resumed already."),
    "owner": N_("This suspended run is somebody else's."),
    "key": N_(
        "This suspended run was sealed with a key that is not known here. Set SUSPENSION_KEYS to the same keys in all "
        "processes."
    ),
    "schema": N_("This suspended run was sealed by another version of this program."),
    "model": N_("This run was suspended with {then}, not {now}."),
    "tools": N_("This run was suspended with other tools: {changed}."),
}


def refused(reason: SuspensionReason, **values: str) -> SuspensionError:
    """Return the error for that reason."""
    return SuspensionError(LocalizedText(SENTENCES[reason], values), reason=reason)


def of_newer_version(unknown: Sequence[str]) -> SuspensionError:
    """Return the error for a record with these fields, given by their paths, which this version does not know."""
    names = ", ".join(map(repr, unknown))
    told = [LocalizedText(SENTENCES["schema"]), _("It has fields that are not known here: {fields}.", fields=names)]
    return SuspensionError(joined(told), reason="schema")


SCHEMA = 1
"""The version of the record. A record with another version is refused with an error, never guessed at."""

GO_ON, STOP = "Go on", "Stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A question or an approval that a suspended run waits for.

    A `question` has its text and perhaps `choices`; its answer can be any text. An `approval` is for the call of the
    tool `name` with `arguments`. `call_id` identifies it in a reply. `agent` is the tool whose agent asks, "" if the
    run itself does; "research/editor" is the tool `editor` of the tool `research`.
    """

    call_id: str
    kind: Literal["question", "approval"]
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    question: str = ""
    choices: tuple[str, ...] = ()
    agent: str = ""

    @property
    def sentence(self) -> str:
        """The sentence shown to people."""
        return self.question or f"May the tool {self.name} be used?"


@explains_fields
@dataclass(frozen=True, slots=True)
class Approve:
    """Allows the call, with other arguments if they are given."""

    arguments: Mapping[str, Any] | None = None


@explains_fields
@dataclass(frozen=True, slots=True)
class Refuse:
    """Refuses the call or the question. The model reads the reason."""

    reason: str = ""


Answer = str | Approve | Refuse
Reply = Answer | Mapping[str, Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """The state for resuming a run, except the agent: its conversation, its pending calls and its used budget.

    `model` is the id of its model, and `tools` has a digest of each tool by name. An agent with another model or other
    tools does not resume the run unless told to. Empty values are not compared. `limit` is the limit that suspended the
    run, if any. `children` are the suspended runs of agents that are tools, by the id of their call, and `handed` are
    the names of the tools that have handed the turn over. A child has the arguments of its call if the user has
    `changed` them. Sealing sets `owner` and `expires_at`.
    """

    schema: int = SCHEMA
    id: str = field(default_factory=new_id)
    owner: str = ""
    run_id: str = ""
    session_id: str
    model: str = ""
    tools: Mapping[str, str] = field(default_factory=dict[str, str])
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    messages: tuple[ModelMessage, ...]
    pending: tuple[Pending, ...]
    limit: Limit | None = None
    spent: BudgetUsed = field(default_factory=BudgetUsed)
    children: Mapping[str, "Suspension"] = field(default_factory=dict[str, "Suspension"])
    handed: tuple[str, ...] = ()
    changed: Mapping[str, Any] | None = None
    created_at: datetime = field(default_factory=now)
    expires_at: datetime | None = None

    @classmethod
    def of(cls, session_id: str, messages: Sequence[ModelMessage], *, run_id: str = "") -> "Suspension":
        """Return the suspension of a stored conversation with calls without results in its last response.

        Only the end of the run tells a call that waits for people from one that was cut short: check first that the
        note of the last entry says `suspended`. Raises `InputError` if every call has a result.
        """
        at, calls = unanswered_calls(messages)
        if not calls:
            raise InputError("nothing is suspended here: every call has its result")
        repaired = (*repair(messages[:at]), *messages[at:])
        pending = tuple(_pending(call) for call in calls)
        return cls(session_id=session_id, run_id=run_id, messages=repaired, pending=pending)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """A suspended run and the answers to all its questions and approvals. It uses up a `sealed` one."""

    suspension: Suspension
    answers: Mapping[str, Answer]
    sealed: bool
    changed_ok: bool

    def check(self, tools: Mapping[str, Tool]) -> None:
        """Raise `SuspensionError` if the tools have changed, `InputError` if new arguments do not fit."""
        then = self.suspension.tools
        if then and not self.changed_ok and (changed := _changed(then, digests(tools.values()))):
            raise refused("tools", changed=changed)
        for one in self._own:
            answer = self.answers[one.call_id]
            wanted = tools.get(one.name)
            if isinstance(answer, Approve) and answer.arguments is not None and wanted is not None:
                try:
                    wanted.arguments(ToolCallPart(one.name, dict(answer.arguments)))
                except Exception as error:
                    raise InputError(f"the changed arguments do not fit the tool {one.name!r}: {error}") from error

    def results(self) -> list[ToolReturnPart]:
        """Return the results that people themselves gave: answers and refusals."""
        results: list[ToolReturnPart] = []
        for one in self._own:
            match self.answers[one.call_id]:
                case str(text):
                    results.append(ToolReturnPart(one.name, fix_surrogates(text), tool_call_id=one.call_id))
                case Refuse(reason):
                    what = "did not answer" if one.kind == "question" else "refused this call"
                    text = f"The user {what}.{f' The reason given: {reason}' if reason else ''}"
                    results.append(
                        ToolReturnPart(one.name, fix_surrogates(text), tool_call_id=one.call_id, outcome="denied")
                    )
                case Approve():
                    continue
        return results

    def calls(self) -> list[ToolCallPart]:
        """Return the approved calls, with the approved arguments, and the calls whose agents wait."""
        parts = [part for message in self.suspension.messages for part in message.parts]
        ids = self.suspension.children
        made = [part for part in parts if isinstance(part, ToolCallPart) and part.tool_call_id in ids]
        for one in self._own:
            answer = self.answers[one.call_id]
            if isinstance(answer, Approve):
                arguments = one.arguments if answer.arguments is None else answer.arguments
                made.append(ToolCallPart(one.name, dict(arguments), tool_call_id=one.call_id))
        return made

    def child(self, call_id: str) -> "tuple[Suspension, Mapping[str, Answer]] | None":
        """Return the suspended run of the agent that this call has asked, and the answers for it, if it waits."""
        child = self.suspension.children.get(call_id)
        if child is None:
            return None
        return child, {one.call_id: self.answers[f"{call_id}/{one.call_id}"] for one in child.pending}

    @property
    def _own(self) -> list[Pending]:
        """The questions of the run itself, without those of the agents below it."""
        return [one for one in self.suspension.pending if not one.agent]

    def with_note(self, result: ToolReturnPart) -> ToolReturnPart:
        """Return the result of an approved call, with a note on the arguments if the user changed them."""
        changed = self.changed(result.tool_call_id)
        if changed is None:
            return result
        return with_note(result, f"The user changed the arguments to {dumps(changed, ensure_ascii=False)}.")

    def changed(self, call_id: str) -> Mapping[str, Any] | None:
        """Return the arguments of the call if the user has changed them, now or before its agent or tool asked."""
        answer, child = self.answers.get(call_id), self.suspension.children.get(call_id)
        return answer.arguments if isinstance(answer, Approve) else child.changed if child is not None else None


def pending_call(call: ToolCallPart, tools: Mapping[str, Tool]) -> Pending | None:
    """Return the question or approval that the call waits for. None if it can be made at once or will fail anyway."""
    tool = tools.get(call.tool_name)
    if tool is None or not (tool.needs_approval or needs_person(tool)):
        return None
    try:
        tool.arguments(call)
    except Exception:  # the model gets the error; people are not asked about invalid calls
        return None
    return _pending(call)


def needs_person(tool: Tool) -> bool:
    """Return True if this is the tool that asks the user."""
    return tool.function is ask_user.function


def ask_to_continue(limit: Limit, limits: Limits) -> Pending:
    """Return the question of a run that has reached a limit."""
    question = f"{explain_limit(limit, limits)} Go on?"
    return Pending(call_id="limit", kind="question", name=limit, question=question, choices=(GO_ON, STOP))


def match_answers(pending: Sequence[Pending], reply: Reply) -> dict[str, Answer]:
    """Return the answers of a reply by call id. Raises `InputError` if one is missing, unknown, empty or unfit."""
    if isinstance(reply, Mapping):
        answers = dict(reply)
    elif len(pending) == 1:
        answers = {pending[0].call_id: reply}
    else:
        written = ", ".join(f"{one.call_id!r}: ..." for one in pending)
        raise InputError(f"{len(pending)} answers are wanted, by call id: write resume(suspended, {{{written}}})")
    known = {one.call_id for one in pending}
    missing, unknown = known - answers.keys(), answers.keys() - known
    if missing or unknown:
        said = [f"no answer is given to {_ids(missing)}"] if missing else []
        raise InputError("; ".join([*said, *([f"nothing waits for an answer to {_ids(unknown)}"] if unknown else [])]))
    for one in pending:
        answer = answers[one.call_id]
        if isinstance(answer, str) and not answer.strip():
            raise InputError(f"the answer to {one.call_id!r} is empty")
        if not _fits(one, answer):
            kind, wanted = ("a question", "a text") if one.kind == "question" else ("an approval", "Approve()")
            raise InputError(f"{one.call_id!r} is {kind}: it takes {wanted} or Refuse(), not {shown(answer)}")
    return answers


def _fits(one: Pending, answer: object) -> bool:
    return isinstance(answer, (str, Refuse) if one.kind == "question" else (Approve, Refuse))


def digests(tools: Iterable[Tool]) -> dict[str, str]:
    """Return a short digest of the argument schema of each tool, by tool name."""
    schemas = {tool.name: tool.definition.parameters_json_schema for tool in tools}
    return {name: sha256(dumps(schema, sort_keys=True).encode()).hexdigest()[:16] for name, schema in schemas.items()}


def _pending(call: ToolCallPart) -> Pending:
    arguments = call.args_as_dict()
    if call.tool_name != ask_user.name:
        return Pending(call_id=call.tool_call_id, kind="approval", name=call.tool_name, arguments=arguments)
    return Pending(
        call_id=call.tool_call_id,
        kind="question",
        name=call.tool_name,
        arguments=arguments,
        question=str(arguments.get("question", "")),
        choices=tuple(map(str, arguments.get("choices") or ())),
    )


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    changes = [f"{name!r} is gone" for name in before.keys() - now.keys()]
    changes += [f"{name!r} is new" for name in now.keys() - before.keys()]
    changes += [f"{name!r} takes other arguments" for name in before.keys() & now.keys() if before[name] != now[name]]
    return ", ".join(sorted(changes))


def _ids(ids: Iterable[str]) -> str:
    return ", ".join(repr(one) for one in sorted(ids))
