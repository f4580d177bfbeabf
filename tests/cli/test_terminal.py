"""The chat in the terminal, as a real child process at a real terminal: typing, stopping, leaving and resuming."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import pytest
from hypothesis import given, settings
from PIL import Image as Pillow

from agent import Agent, Context, InputError, Seals, Suspension, ask_user
from agent.cli.chat import ConversationFile, ConversationState
from agent.settings import ROOT
from tests.support.fakes import Call, FakeConnection, Step
from tests.support.forked_apps import Imported, imported
from tests.support.gate_rows import gate_rows
from tests.support.media_files import sound
from tests.support.scripted_server import Config, Running
from tests.support.strategies import conversations
from tests.tiers import examples

MODEL = "Qwen/Qwen3-VL-8B-Instruct"
PATIENCE = 60.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
CTRL_C, CTRL_D, CTRL_U = "\x03", "\x04", "\x15"


SERVER = Config(models=(MODEL,), rate=200.0)


def environment(base_url: str, folder: Path) -> dict[str, str]:
    unset = ("MODEL", "LOCAL_MODEL", "SWITCHBOARD_TELEMETRY", "SUSPENSION_KEYS", "COLUMNS", "LINES")
    return {name: value for name, value in os.environ.items() if name not in unset} | {
        "VLLM_BASE_URL": base_url,
        "SWITCHBOARD_CONFIG": str(folder / "none.toml"),
        "TERM": "dumb",
        "PYTHONPATH": str(ROOT),
    }


@dataclass
class Done:
    """A chat that has ended."""

    returncode: int
    stdout: str
    stderr: str


class Typed:
    """A process at its own terminal. `said` is everything shown, including typed text."""

    def __init__(self, chat: Imported, argv: list[str], env: Mapping[str, str], folder: Path) -> None:
        self.said, self._seen = "", 0
        self._terminal, other_end = pty.openpty()
        self._process = chat.start(env, [os.ttyname(other_end)] * 3, argv, folder=folder, own_session=True)
        os.close(other_end)
        self.pid = self._process.pid
        # Wide enough that no line wraps.
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 400, 0, 0))

    def until(self, pattern: str) -> re.Match[str]:
        """Wait until the pattern is shown, after the previous match."""
        end = monotonic() + PATIENCE
        while not (found := re.compile(pattern).search(self.said, self._seen)):
            assert monotonic() < end, f"{pattern!r} is not shown: {self.said[self._seen :]!r}"
            if not self._read():
                raise AssertionError(f"it ended before {pattern!r}: {self.said[self._seen :]!r}")
        self._seen = found.end()
        return found

    def type(self, text: str) -> None:
        """Type a line at the prompt, and wait until it is shown."""
        os.write(self._terminal, f"{text}\n".encode())
        self.until(re.escape(text))

    def press(self, key: str) -> None:
        """Press a key once the process waits. Python misses a Ctrl-C between its prompt and its read."""
        end, before = monotonic() + PATIENCE, ""
        while (now := self._doing()) != before or now == "running":
            assert monotonic() < end, "it is always busy"
            before = now
            select.select([], [], [], 0.05)
        os.write(self._terminal, key.encode())

    def _doing(self) -> str:
        """Return the system call of its main thread, with arguments, or "running"."""
        return Path(f"/proc/{self.pid}/syscall").read_text().strip()

    def ended(self) -> int:
        """Wait for the end and return the exit status, or -n after signal n."""
        while self._read():
            pass
        return self._process.wait(PATIENCE)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)
        os.close(self._terminal)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._terminal], [], [], PATIENCE)
        assert ready, f"no more output after {self.said[-500:]!r}"
        try:
            data = os.read(self._terminal, 65536)
        except OSError:  # Linux reports a closed peer this way
            return False
        self.said += data.decode(errors="replace").replace("\r", "")
        return bool(data)


AtTerminal = Callable[..., AbstractContextManager[Typed]]
Piped = Callable[..., Done]


@pytest.fixture(scope="module")
def chat() -> Iterator[Imported]:
    """The process from which chats are forked."""
    with imported("agent.__main__") as process:
        yield process


@pytest.fixture
def at_terminal(chat: Imported, server: Running, tmp_path: Path) -> AtTerminal:
    """Start a chat at its own terminal: `with at_terminal("--history", "kept.json") as typed`."""

    @contextmanager
    def start(*argv: str) -> Iterator[Typed]:
        typed = Typed(chat, list(argv), environment(server.base_url, tmp_path), tmp_path)
        try:
            yield typed
        finally:
            typed.kill()

    return start


@pytest.fixture
def piped(chat: Imported, server: Running, tmp_path: Path) -> Piped:
    """Run a chat with this input to its end: `piped("Hello", "--tools")`."""

    def run(text: str, *argv: str, base_url: str = "") -> Done:
        files = [tmp_path / name for name in ("stdin", "stdout", "stderr")]
        for file, written in zip(files, (text, "", ""), strict=True):
            file.write_text(written)
        env = environment(base_url or server.base_url, tmp_path)
        status = chat.start(env, files, argv, folder=tmp_path).wait(2 * PATIENCE)
        return Done(status, files[1].read_text(), files[2].read_text())

    return run


# --- at the terminal --------------------------------------------------------------------------------------------------


def test_conversation_in_terminal(at_terminal: AtTerminal, server: Running, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    Pillow.new("RGB", (3, 2), "red").save(tmp_path / "red.png")
    (tmp_path / "hum.wav").write_bytes(sound("wav"))
    with at_terminal("--history", "kept.json", "--tools", "agent.tools.builtin:calculate") as typed:
        typed.until(r"Qwen3-VL-8B-Instruct\. /help")
        typed.until("> ")
        typed.type("!tokens 3")
        typed.until(r"word0 word1 word2 \n> ")
        typed.type('!reasoning So\\nbe it !tool calculate {"expression": "6*7"} !tokens 1')
        typed.until("So\nbe it")
        typed.until(r"calculate gave")
        typed.until(r"│ 42")
        typed.until("word0")
        typed.type("/image red.png")
        typed.until(r"\(image/png, \d+ bytes: it goes with the next message\.\)")
        typed.type("!tokens 2")
        typed.until("word0 word1")
        sent = server.journal()[-1]["body"]["messages"][-1]["content"]
        assert [part["type"] for part in sent] == ["text", "image_url"]
        for line, answer in {
            "/tools": "calculate: Work out",
            "/reasoning sideways": "takes on, off or one of",
            "/reasoning on": r"\(Reasoning: on\.\)",
            "/system Be brief.": r"\(The system message is set\.\)",
            "/model": r"\(The model is vllm:Qwen/Qwen3-VL",
            "/model no-such-model": "No model named 'no-such-model' is known",
            "/image none.png": "none.png",
            "/dance": "There is no command /dance",
            "/help": "Ctrl-C stops the answer",
        }.items():
            typed.until("> ")
            typed.type(line)
            typed.until(answer)
        typed.until("> ")
        typed.type("!tokens 1")
        typed.until("word0")
        assert server.journal()[-1]["body"]["messages"][0] == {"role": "system", "content": "Be brief."}
        typed.type("/history")
        typed.until(r"> !tokens 2 \[image/png\]")
        typed.until("> ")
        typed.type("/quit")
        assert typed.ended() == 0
    assert len(ConversationFile(kept).load().context.messages) == 10
    with at_terminal("--history", "kept.json") as typed:
        typed.until("goes on after 4 turns")
        typed.until("> ")
        typed.type("/sound hum.wav")
        typed.until(r"\(audio/[\w-]+, \d+ bytes: it goes with the next message\.\)")
        typed.type("/new")
        typed.until("A new conversation")
        typed.until("> ")
        typed.press(CTRL_D)
        assert typed.ended() == 0
    assert ConversationFile(kept).load().context.messages == ()


def test_ctrl_c_stops_answer_then_leaves(at_terminal: AtTerminal, server: Running, tmp_path: Path) -> None:
    with at_terminal("--history", "kept.json") as typed:
        typed.until("> ")
        typed.type("!tokens 5000 @40")
        typed.until("word5 ")
        typed.press(CTRL_C)
        typed.until(r"\(Stopped\.\)\n> ")
        assert server.wait_for(lambda journal: journal[-1]["ended"])[-1]["ended"] == "client_closed"
        typed.type("!tokens 1")
        typed.until("word0")
        typed.until("> ")
        typed.press(CTRL_C)
        typed.until("Ctrl-C again")
        typed.until("> ")
        typed.press(CTRL_C)
        assert typed.ended() == 130
    half = ConversationFile(tmp_path / "kept.json").load().context.messages[1]
    assert half.parts[0].content.startswith("## word0 word1")  # type: ignore[union-attr]
    with at_terminal() as typed:
        typed.until("> ")
        typed.type("!stall-before")
        server.wait_for(lambda journal: journal[-1]["ended"] is None)
        typed.press(CTRL_C)
        typed.until("Stopped")
        typed.until("> ")
        typed.press(CTRL_C)  # the second in a row
        assert typed.ended() == 130


SUSPENDS = '!tool ask_user {"question": "Which one?", "choices": ["left", "right"]} !tool pay {"amount": 5} !tokens 2'


@pytest.mark.full
def test_suspended_run_waits_across_restarts(at_terminal: AtTerminal, server: Running) -> None:
    argv = ("--history", "kept.json", "--tools", "agent:ask_user", "tests.support.asking_tools:pay")
    with at_terminal(*argv) as typed:
        typed.until("> ")
        typed.type(SUSPENDS)
        typed.until(r"\? Which one\?\n  1\. left\n  2\. right\nanswer> ")
        typed.press(CTRL_D)
        typed.until("the run stays suspended")
        typed.until("> ")
        typed.press(CTRL_D)
        assert typed.ended() == 0
    with at_terminal(*argv) as typed:
        typed.until(r"waits for an answer")
        typed.until(r"1\. left\n  2\. right\nanswer> ")
        typed.type("2")
        typed.until(r"\? May the tool pay be used\?\n  pay\(\{\"amount\": 5\}\)\n")
        typed.until(r"y, n or edit> ")
        os.kill(typed.pid, signal.SIGKILL)
        assert typed.ended() == -signal.SIGKILL
    with at_terminal(*argv) as typed:
        typed.until(r"y, n or edit> ")
        typed.type("perhaps")
        typed.until("y approves it")
        typed.until(r"y, n or edit> ")
        typed.type("edit")
        typed.until(r'arguments> \{"amount": 5\}')
        typed.press(CTRL_U)
        typed.type('{"amount": 7}')
        typed.until("paid 7")
        typed.until("word0 word1")
        typed.until("> ")
        typed.type(SUSPENDS)
        typed.until("answer> ")
        typed.type("neither")
        typed.until("y, n or edit> ")
        typed.type("n too much")
        typed.until("word0 word1")
        typed.until("> ")
        typed.press(CTRL_D)
        assert typed.ended() == 0
    said = [message["content"] for message in server.journal()[-1]["body"]["messages"] if message["role"] == "tool"]
    assert said[0] == "right"
    assert said[1].startswith("paid 7")
    assert said[2] == "neither"
    assert "too much" in said[3]


# --- without a terminal -----------------------------------------------------------------------------------------------


@pytest.mark.full
def test_each_piped_line_is_a_prompt(piped: Piped) -> None:
    done = piped("!text One\n\n!text Two\n", "--tools")
    assert done.stdout.split() == ["One", "Two"]
    assert done.returncode == 0
    done = piped("!status 400\n!text Two\n", "--model", MODEL)
    assert "Two" in done.stdout
    assert done.returncode == 1
    done = piped(SUSPENDS + "\n1\n", "--tools", "agent:ask_user")
    assert "There is no tool named 'pay'" in done.stdout
    assert done.returncode == 0
    done = piped(SUSPENDS + "\n", "--tools", "agent:ask_user")
    assert "stays suspended" in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("how", "status"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.full)]
)
def test_signal_ends_pipe_and_keeps_text(server: Running, tmp_path: Path, how: signal.Signals, status: int) -> None:
    argv = [sys.executable, "-m", "agent", "--history", "kept.json"]
    env = environment(server.base_url, tmp_path)
    before = len(server.journal())
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd=tmp_path) as child:
        assert child.stdin is not None
        child.stdin.write(b"!tokens 5000 @40\n!text Never\n")
        child.stdin.flush()
        server.wait_for(lambda journal: len(journal) > before and journal[-1]["sent"] > 3, PATIENCE)
        child.send_signal(how)
        assert child.wait(PATIENCE) == status
    server.wait_for(lambda journal: journal[-1]["ended"] == "client_closed", PATIENCE)
    messages = ConversationFile(tmp_path / "kept.json").load().context.messages
    assert messages[0].parts[0].content == "!tokens 5000 @40"  # type: ignore[union-attr]


WRONG = {
    "no such model": (["--model", "no-such-model"], 1, "No model named 'no-such-model'"),
    "no server": (["--base-url", "http://127.0.0.1:1/v1"], 1, "cannot be reached"),
    "a server without it": (["--model", "vllm:another"], 1, "another"),
    "no such tool": (["--tools", "agent:nothing"], 1, "the tool 'agent:nothing' cannot be imported"),
    "no such option": (["--loud"], 2, "--loud"),
    "a foreign history": (["--history", "foreign.json"], 1, "'foreign.json' is no conversation"),
    "a history that is no file": (["--history", "."], 1, "cannot be read"),
}


@pytest.mark.parametrize(("argv", "status", "said"), gate_rows(WRONG, ("no server", "a foreign history")))
def test_bad_arguments_give_one_sentence(piped: Piped, tmp_path: Path, argv: list[str], status: int, said: str) -> None:
    (tmp_path / "foreign.json").write_text("[1, 2]")
    done = piped("Hello\n", *argv)
    assert said in done.stderr + done.stdout
    assert done.returncode == status
    assert "Traceback" not in done.stderr
    assert (tmp_path / "foreign.json").read_text() == "[1, 2]"


def test_unreachable_named_server_ends_program(piped: Piped) -> None:
    done = piped("Hello\n", base_url="http://127.0.0.1:1/v1")
    assert "cannot be reached" in done.stderr
    assert done.returncode == 1


# --- the file ---------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(30))
@given(conversations())
def test_stored_history_comes_back(messages: list[Any]) -> None:
    with TemporaryDirectory() as folder:
        file = ConversationFile(Path(folder, "kept.json"))
        assert file.load().context.messages == ()
        context = Context(messages=tuple(messages))
        file.save(ConversationState(context))
        assert file.load().context.to_json() == context.to_json()
        assert os.listdir(folder) == ["kept.json"]


async def test_suspension_is_stored_whole(tmp_path: Path) -> None:
    seals = Seals()
    question = json.dumps({"question": "Which one?", "choices": ["left"]})
    agent = Agent(FakeConnection([Step([Call("ask_user", question, "a")], "tool_call")]), tools=[ask_user], seals=seals)
    result = await agent.ask("Hello")
    suspension = seals.open(result.suspension or "")
    file = ConversationFile(tmp_path / "kept.json")
    file.save(ConversationState(result.context, suspension))
    back = file.load().suspension
    assert isinstance(back, Suspension)
    assert back == suspension
    assert (await agent.resume(back, "left")).text == "done"


def test_unreplaceable_file_is_left_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = ConversationFile(tmp_path / "kept.json")
    file.save(ConversationState())
    before = file.path.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(Exception, match="No space left"):
        file.save(ConversationState())
    assert file.path.read_bytes() == before
    assert os.listdir(tmp_path) == ["kept.json"]
    file.path.write_text(json.dumps(json.loads(before) | {"version": 9}))
    with pytest.raises(InputError, match="another version"):
        file.load()
