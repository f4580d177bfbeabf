"""Run records replay a live run exactly, without network, tools or keys."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import BinaryContent

from agent import Agent, Approve, Image, InputError, Limits, Response, Run, Tool, UnknownModel, ask_user, tool
from agent.events import Event, Observers
from agent.settings import ROOT
from agent.tracing.record_format import OLD_FORMAT, RunRecord, load_record, record_path
from tests.support import media_files
from tests.support.fakes import SPEC, Call, FakeConnection, Step, Words
from tests.support.scripted_runs import LIMITS, scripted_tools, steps
from tests.support.scripted_server import running
from tests.tiers import examples

KEY = "sk-abcdefgh-87654321-zyxw"
"""A fake key of a provider."""


def bubbles(responses: Sequence[Response]) -> list[tuple[str, Any]]:
    """Return the responses with the deltas of each bubble joined."""
    out: list[tuple[str, Any]] = []
    for response in responses:
        if response.is_type_switched:
            out.append((response.type, response.content))
        else:
            out[-1] = (response.type, out[-1][1] + response.content)
    return out


async def ended(run: Run) -> Run:
    await run
    return run


async def recorded(script: Sequence[Step], limits: Limits, path: Path) -> Run:
    runs: list[Run] = []
    connection = FakeConnection(script)
    agent = Agent(connection, tools=scripted_tools(lambda: runs[0].cancel()), limits=limits, system_message="Be brief.")
    runs.append(run := agent.run("Hello", record=path))
    connection.played.cancel = run.cancel
    return await ended(run)


QUICK = settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])


@QUICK
@given(steps(), LIMITS)
def test_replay_repeats_the_record(script: list[Step], limits: Limits) -> None:
    async def play(folder: Path) -> None:
        live = await recorded(script, limits, folder / "live.jsonl")
        again = await ended(Agent(f"replay:{folder}/live.jsonl?speed=inf").run("?", record=folder / "again.jsonl"))
        third = await ended(Agent(f"replay:{folder}/again.jsonl?speed=inf").run("?"))
        assert live.result is not None
        for run in (again, third):
            assert run.result is not None
            assert bubbles(run.responses) == bubbles(live.responses)
            assert run.result.finish_reason == live.result.finish_reason
            assert run.result.text == live.result.text
        for name in ("live", "again"):
            assert bubbles(load_record(folder / f"{name}.jsonl").responses) == bubbles(live.responses)

    with TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder)))


# --- with a real server, then without ---------------------------------------------------------------------------------

SCRIPT = "!reasoning Let me see. !text One moment. !tool count {} !pace 40 !text It is done, all of it, at last."


@pytest.mark.slow
async def test_replay_calls_no_server_or_tool(tmp_path: Path) -> None:
    counted: list[int] = []

    async def count() -> str:
        counted.append(1)
        await asyncio.sleep(0.2)
        return "counted"

    path = tmp_path / "live.jsonl"
    with running() as server:
        agent = Agent("Qwen/Qwen3-8B", provider="vllm", base_url=server.base_url, tools=[count])
        async with agent:
            live = await ended(agent.run(SCRIPT).record(path))
    assert live.result is not None
    assert live.result.finish_reason == "stop"
    loaded = load_record(path)
    took = sum(step.seconds for step in loaded.steps) + sum(seconds for seconds, _ in loaded.results.values())
    for speed in (1, 4):
        began = monotonic()
        replayed = await ended(Agent(f"replay:{path}?speed={speed}", tools=[count]).run("Whatever"))
        assert monotonic() - began >= 0.95 * took / speed
        assert bubbles(replayed.responses) == bubbles(live.responses)
        assert replayed.result is not None
        assert replayed.result.usage == live.result.usage
        assert replayed.result.cost is None
    assert len(counted) == 1


async def test_provider_failure_replays_without_waiting(tmp_path: Path) -> None:
    path = tmp_path / "live.jsonl"
    with running() as server:
        async with Agent("Qwen/Qwen3-8B", provider="vllm", base_url=server.base_url) as agent:
            for script in ("!status 400", "!fail 1 503 !text Then it worked.", "!reset 3", "!cut 3", "!length 4"):
                live = await ended(agent.run(script, record=path))
                replayed = await ended(Agent(f"replay:{path}?speed=inf").run("?"))
                assert bubbles(replayed.responses) == bubbles(live.responses)
                assert replayed.result is not None
                assert live.result is not None
                assert replayed.result.note.detail == live.result.note.detail
                assert replayed.result.finish_reason == live.result.finish_reason


@dataclass
class Canned(FakeConnection):
    """A source of runs that is not a replay."""

    tools: Mapping[str, Tool] = field(default_factory=dict[str, Tool])
    limits: Limits = field(default_factory=lambda: Limits(steps=1))


async def test_source_of_runs_brings_tools_and_limits() -> None:
    calls: list[str] = []

    @tool
    async def look() -> str:
        calls.append("the source's")
        return "seen"

    def other() -> str:
        calls.append("the agent's")
        return "seen"

    source = Canned([Step([Call("look", "{}", "a")], "tool_call")] * 3, tools={"look": look})
    agent = Agent(source, tools=[tool(name="look")(other)], limits=Limits(steps=9))
    result = await agent.ask(Image.from_bytes(PIXEL))  # the model cannot see it
    assert (calls, result.finish_reason) == (["the source's"], "limit")


# --- keys and media ---------------------------------------------------------------------------------------------------

PIXEL = media_files.picture("PNG")


async def test_file_holds_pictures_but_no_key(tmp_path: Path) -> None:
    @tool
    async def look(api_key: str, note: str) -> list[Any]:
        return ["a picture", note]

    @tool
    async def draw() -> BinaryContent:
        return BinaryContent(PIXEL, media_type="image/png")

    half = len(KEY) // 2
    script = [
        Step(
            [
                Words("reasoning", ["I think of ", KEY[:half], KEY[half:], " and more"]),
                Words("output_text", ["It is ", *KEY, ", I say"]),
                Call("look", json.dumps({"api_key": "hunter2", "note": f"see {KEY}"}), "a"),
                Call("draw", "{}", "b"),
            ],
            "tool_call",
        ),
        Step([Words("output_text", ["Bearer ", "abc123def456"])]),
    ]
    path = tmp_path / "live.jsonl"
    connection = FakeConnection(script, spec=replace(SPEC, image=True))
    agent = Agent(connection, tools=[look, draw], system_message=f"The key is {KEY}")
    await ended(agent.run([f"My key is {KEY}", BinaryContent(PIXEL, media_type="image/png")], record=path))
    text = path.read_text()
    for secret in (KEY, "hunter2", "abc123def456"):
        assert secret not in text
    assert path.stat().st_mode & 0o077 == 0
    replayed = await ended(Agent(f"replay:{path}?speed=inf").run("?"))
    assert replayed.result is not None
    assert [file.data for file in replayed.result.files] == [PIXEL]
    assert bubbles(replayed.responses)[1][1] == "It is …, I say"


# --- endings ----------------------------------------------------------------------------------------------------------

CHILD = """
import asyncio, sys
from agent import Agent
asyncio.run(Agent("Qwen/Qwen3-8B", provider="vllm", base_url=sys.argv[1]).ask("!tokens 500 @20", record=sys.argv[2]))
"""


@pytest.mark.slow
def test_killed_program_leaves_readable_record(tmp_path: Path) -> None:
    path = tmp_path / "live.jsonl"
    with running() as server:
        child = subprocess.Popen([sys.executable, "-c", CHILD, server.base_url, str(path)], cwd=ROOT)
        try:
            until = monotonic() + 60
            while not (path.exists() and path.read_text().count('"chunk"') >= 5):
                assert monotonic() < until
                assert child.poll() is None
                sleep(0.02)
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait(20)
    replayed = asyncio.run(ended(Agent(f"replay:{path}?speed=inf").run("?")))
    assert [kind for kind, _ in bubbles(replayed.responses)] == ["output_text", "error"]
    assert bubbles(replayed.responses)[0][1].startswith("## word0 word1")
    assert "its program was ended" in bubbles(replayed.responses)[1][1]


async def test_suspended_run_replays_with_its_resumption(tmp_path: Path) -> None:
    @tool(needs_approval=True)
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    question = json.dumps({"question": "Which one?", "choices": ["left", "right"]})
    script = [
        Step([Call("ask_user", question, "a"), Call("pay", '{"amount": 5}', "b")], "tool_call"),
        Step([Words("output_text", ["Thanks."])]),
    ]
    agent = Agent(FakeConnection(script), tools=[ask_user, pay])
    live = await ended(agent.run("Go", record=tmp_path / "first.jsonl"))
    assert live.result is not None
    assert live.result.suspension is not None
    replay = Agent(f"replay:{tmp_path}/first.jsonl?speed=inf")
    replayed = await ended(replay.run("?"))
    assert replayed.result is not None
    assert replayed.result.pending == live.result.pending
    assert bubbles(replayed.responses) == bubbles(live.responses)
    answers = {"a": "left", "b": Approve()}
    over = await ended(replay.resume(replayed.result.suspension or "", answers))
    assert bubbles(over.responses)[-1][0] == "error"

    resumed = await ended(agent.resume(live.result.suspension, answers, record=tmp_path / "second.jsonl"))
    again = await ended(Agent(f"replay:{tmp_path}/second.jsonl?speed=inf").run("?"))
    # No provider accepts a result without its call, so the replay shows the calls again.
    assert [one for one in bubbles(again.responses) if one[0] != "tool_call"] == bubbles(resumed.responses)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("record") / "one.jsonl"
    script = [
        Step([Words("reasoning", ["日本"]), Call("fine", "{}", "a")], "tool_call"),
        Step([Words("output_text", ["Yes"])]),
    ]
    asyncio.run(recorded(script, Limits(), path))
    return path.read_bytes()


@settings(max_examples=examples(60))
@given(st.data())
def test_damaged_file_is_read_or_refused(record: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(record)))
    stop = data.draw(st.integers(start, len(record)))
    inserted = data.draw(st.sampled_from([b"", b"{}\n", b"\xff", b'"', b"null", b"\n", b"[1]\n"]))
    with TemporaryDirectory() as folder:
        path = Path(folder, "one.jsonl")
        path.write_bytes(record[:start] + inserted + record[stop:] if inserted or stop > start else record[:start])
        with suppress(InputError):  # any other exception fails the test
            assert isinstance(load_record(path), RunRecord)


def changed(record: bytes, **more: Any) -> bytes:
    head, _, rest = record.partition(b"\n")
    return json.dumps(json.loads(head) | more).encode() + b"\n" + rest


FOREIGN = {
    "nothing": (lambda _: b"", "is not a run record"),
    "a picture": (lambda _: PIXEL, "is not a run record"),
    "other JSON": (lambda _: b'{"messages": []}\n', "is not a run record"),
    "another version": (lambda record: changed(record, version=2), "of version 2"),
    "a model of another program": (lambda record: changed(record, model={"name": 5}), "damaged in line 1"),
    "a line that is missing its end": (lambda record: record.replace(b'"kind": "step"}', b'"kind": "st'), "line 3"),
    "a line of another kind": (lambda record: record.replace(b'"kind": "step"', b'"kind": "leap"'), "line 3"),
}


@pytest.mark.parametrize(("made", "said"), FOREIGN.values(), ids=FOREIGN)
def test_other_files_are_refused(record: bytes, tmp_path: Path, made: Any, said: str) -> None:
    path = tmp_path / "one.jsonl"
    path.write_bytes(made(record))
    with pytest.raises(InputError, match=said):
        Agent(f"replay:{path}")


def test_old_format_name_still_works(record: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "old.jsonl"
    path.write_bytes(changed(record, format=OLD_FORMAT))
    assert load_record(path).steps
    assert [line.getMessage() for line in caplog.records] == [
        "old.jsonl: the next version will not read 'switchboard flight record'; "
        "change it to 'switchboard run record' in line 1"
    ]
    caplog.clear()
    path.write_bytes(record)
    assert load_record(path).steps
    assert not caplog.records


@pytest.mark.parametrize("name", ["replay:/nowhere/x.jsonl", "replay:", "replay:x?speed=fast", "replay:x?speed=-1"])
def test_unplayable_record_is_refused_before_run(name: str) -> None:
    with pytest.raises(InputError):
        Agent(name)


async def test_unrecordable_run_is_refused_before_start(tmp_path: Path) -> None:
    agent = Agent(FakeConnection([]))
    with pytest.raises(InputError, match="No record can be written"):
        agent.run("Hello", record=tmp_path)
    run = await ended(agent.run("Hello"))
    with pytest.raises(InputError, match="from its beginning"):
        run.record(tmp_path / "late.jsonl")


def test_typed_name_finds_only_folder_records(record: bytes, tmp_path: Path) -> None:
    folder, outside = tmp_path / "records", tmp_path / "secret.jsonl"
    (folder / "deep").mkdir(parents=True)
    for path in (folder / "one.jsonl", folder / "deep" / "two.jsonl", folder / ".hidden.jsonl", outside):
        path.write_bytes(record)
    (folder / "link.jsonl").symlink_to(outside)
    (folder / "folder.jsonl").mkdir()
    assert record_path(folder, "one") == record_path(folder, " one.jsonl ") == folder / "one.jsonl"
    wrong = (
        "",
        ".",
        "..",
        "../secret",
        str(outside),
        "deep/two",
        "deep\\two",
        ".hidden",
        "link",
        "folder",
        "one\0",
        "two",
    )
    for name in (*wrong, "one\ntwo", "one.jsonl?speed=2", "\uff4fne", "x" * 300):
        with pytest.raises(UnknownModel):
            record_path(folder, name)


# --- observers --------------------------------------------------------------------------------------------------------


async def test_failing_observer_does_not_stop_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        told = 0

        def on_event(self, event: Event) -> None:
            self.told += 1
            raise OSError("the disk is full")

    broken = Broken()
    audience = Observers([broken])
    assert audience
    agent = Agent(FakeConnection([Step([Words("output_text", ["Yes"])])]))
    agent.telemetry = lambda: broken  # type: ignore[assignment]
    result = await agent.ask("Hello")
    assert result.text == "Yes"
    assert broken.told == 1
    assert "Broken failed and is told nothing more" in caplog.text
    assert not Observers()
