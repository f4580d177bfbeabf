"""Runs in a notebook: one output that grows, reasoning folded, tools as rows, and no text that acts on the notebook."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from nbclient import NotebookClient
from pydantic_ai.messages import ModelRequest, UserPromptPart

from agent import Agent, Context, InputError, Response, connect, display
from agent.providers.connection import Endpoint
from agent.rendering.notebook import MOST_MESSAGES, as_plain, conversation_to_markdown, responses_to_markdown, tame
from agent.settings import ROOT
from tests.support.fakes import Call, FakeConnection, Step, Words
from tests.support.models import QWEN3
from tests.support.scripted_server import Running

START = """
from agent import Agent, Chat, Context, display, stream_to_display, tool

@tool
def add(a: int, b: int) -> int:
    "Add."
    return a + b

agent = Agent("Qwen/Qwen3-8B", provider="vllm", base_url={url!r}, tools=[add])
SCRIPT = '!reasoning Hm. !tool add {{"a": 1, "b": 2}} !text **Three**.'
"""
Cells = list[list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernel keep its files in an empty folder."""
    for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))


def run_cells(
    server: Running, *cells: str, after: Callable[[int, Cells], None] = lambda number, outputs: None
) -> tuple[Cells, dict[str, int]]:
    """Run the cells in a kernel. Return their outputs, and how many messages of each kind the kernel has sent."""
    sources = [START.format(url=server.base_url), *cells]
    notebook: Any = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in sources])
    sent: dict[str, int] = {}

    class Client(NotebookClient):
        def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
            sent[msg["msg_type"]] = sent.get(msg["msg_type"], 0) + 1
            return super().process_message(msg, cell, cell_index)

    def outputs() -> Cells:
        return [cell["outputs"] for cell in notebook["cells"][1:]]

    client: Any = Client(notebook, timeout=200, resources={"metadata": {"path": str(ROOT)}})
    client.on_cell_executed = lambda cell_index, **_: after(cell_index, outputs())
    client.execute()
    return outputs(), sent


def markdown(outputs: list[dict[str, Any]]) -> str:
    """Return the Markdown of the only output."""
    (output,) = [one for one in outputs if one["output_type"] != "stream"]  # a stream has the log
    return str(output["data"]["text/markdown"])


ANSWER = (
    "<details><summary>Reasoning</summary>\n\nHm.\n\n</details>\n\n| tool | arguments | result |\n|---|---|---|\n"
    "| <code>add</code> | <code>&#123;&#34;a&#34;&#58; 1&#44; &#34;b&#34;&#58; 2&#125;</code> | <code>3</code> |\n\n"
    "**Three**."
)


@pytest.mark.slow
def test_each_way_to_show_a_run_is_one_output(server: Running) -> None:
    outputs, _ = run_cells(
        server,
        "run = agent.run(SCRIPT)\ndisplay(run)\nresult = await run",
        "result = await stream_to_display(agent, SCRIPT)",
        "with Chat(agent) as chat:\n    for response in chat.query(SCRIPT):\n        display(response)",
        "short = await stream_to_display(agent, '!length 2', context=result.context)",
        "result",
        "result.context",
        "display(Context())\ndisplay(3)",
        "run = agent.run('!cut 1')\ndisplay(run)\nawait run.finished()\nNone",
    )
    for shown in outputs[:3]:
        assert markdown(shown) == ANSWER
    assert markdown(outputs[3]).startswith("## word0 word1")
    assert "maximum length" in markdown(outputs[3])
    assert markdown(outputs[4]) == ANSWER
    assert markdown(outputs[5]).startswith("> !reasoning Hm.")
    assert markdown(outputs[5]).endswith(ANSWER)
    assert [output["data"].get("text/plain") for output in outputs[6]][1] == "3"
    assert "**Error:**" in markdown(outputs[7])


@pytest.mark.slow
def test_output_grows_while_later_cells_run(server: Running) -> None:
    seen: list[str] = []

    def after(number: int, outputs: Cells) -> None:
        if number == 2:
            seen.append(markdown(outputs[0]))
            server.release("grows")

    outputs, sent = run_cells(
        server,
        "run = agent.run('!tokens 60 hold 20 grows')\ndisplay(run)",
        "while 'word19' not in run.last_text:\n    await run.wait_for_update(len(run.responses))",
        "await run\nNone",
        after=after,
    )
    assert "word19" in seen[0]
    assert "word21" not in seen[0]
    assert "word59" in markdown(outputs[0])
    assert outputs[1:] == [[], []]
    assert sent["update_display_data"] >= 2


async def test_terminal_says_what_to_write_instead(server: Running) -> None:
    async with Agent(connect(QWEN3, Endpoint(server.base_url))) as agent:
        with pytest.raises(InputError, match="await stream_to_display"):
            display(agent.run("Hello"))
        result = await agent.ask("Hello")
        other: Any = 3
        for value, hint in (
            (result, r"print\(result\)"),
            (result.context, "to_json"),
            (other, "display prints responses"),
        ):
            with pytest.raises(InputError, match=hint):
                display(value)


@pytest.mark.slow
def test_program_without_notebook_never_imports_ipython() -> None:
    code = (
        "import sys\nfrom agent import Response, display\n"
        "display(Response('output_text', 'Hello', True))\nassert 'IPython' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "\nHello"), done.stderr


# --- what is shown ----------------------------------------------------------------------------------------------------

ALL = MarkdownIt("commonmark").enable("table")


def kinds(text: str) -> set[str]:
    """Return the kinds of the tokens of a text."""
    tokens = ALL.parse(text)
    return {one.type for token in tokens for one in [token, *(token.children or [])]}


PIECES = [
    *("<b>", "<img src=x>", "<!--", "![a](b)", "![", "](", "`", "``", "```\n", "~~~", "\\", "\n", "\n\n", "> ", "- "),
]
PIECES += [
    *("    ", "| a | b |\n|---|---|\n", "<details>", "</details>", "[x]: y\n", "![x]", "a", " ", "<?", "&lt;", "!"),
    *("[", "|"),
]


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=20).map("".join))
@example("`a\n\n![x](y)`")
@example("\\`![x](y)`")
@example("[x]: y\n![x]")
@example("<div> `\n` ![x](y) `")
@example("<!--\n\n```\n-->\n\n```\n![x](y)\n```\n")
@example("| a | b |\n|---|---|\n| ` | ![x](y) ` |")
@example("`\n<details>`![x](y)")
@example("| ` | <img src=x> ` |\n|---|---|\n| a | b |")
@example("```\n\u2028```\n![x](y)\n```")
def test_no_text_has_html_or_pictures(text: str) -> None:
    prompt = ModelRequest(parts=[UserPromptPart(text)])
    for shown in (tame(text), conversation_to_markdown([prompt])):
        assert not kinds(shown) & {"html_inline", "html_block", "image"}


@given(st.lists(st.sampled_from(PIECES), max_size=20).map("".join))
@example("```\na")
@example("~~~~\n~~~\na")
@example("</details>")
@example("- ```\n  a")
def test_reasoning_stays_in_its_fold(text: str) -> None:
    shown = responses_to_markdown([Response("reasoning", text, True), Response("output_text", "Z", True)])
    folds = [token.content.strip() for token in ALL.parse(shown) if token.type == "html_block"]
    assert folds[-1] == "</details>"
    assert len(folds) == 2


@pytest.mark.parametrize("code", ["`<b>`", "```\n<b> ![x](y)\n```", "    <b>", "- `![`\n- ``a`<b>``", "x < 3 and y<2"])
def test_code_stays_as_it_is(code: str) -> None:
    assert tame(code) == code


@given(st.text())
def test_names_and_values_are_literal(text: str) -> None:
    inline = [token for token in ALL.parse(f"<code>{as_plain(text)}</code>") if token.type == "inline"]
    found = {child.type for token in inline for child in token.children or []}
    assert found <= {"html_inline", "text", "text_special"}


def test_only_the_newest_messages_are_shown() -> None:
    messages = [ModelRequest(parts=[UserPromptPart(f"number {n}")]) for n in range(MOST_MESSAGES + 7)]
    shown = conversation_to_markdown(messages)
    assert shown.startswith("*7 earlier messages*\n\n> number 7\n\n> number 8")
    assert Context(messages=tuple(messages))._repr_markdown_() == shown


async def test_steered_message_is_quoted_once_in_its_place() -> None:
    async def look() -> str:
        run.steer("Only red.")
        run.steer("Only red.")
        return "seen"

    steps = [Step([Words("output_text", ["First."]), Call("look", "{}", "1")]), Step([Words("output_text", ["Then."])])]
    run = Agent(FakeConnection(steps), tools=[look]).run("Look.")
    result: Any = await run
    shown = result._repr_markdown_()
    assert shown.startswith("First.\n\n| tool |")
    assert shown.endswith("\n\n> Only red.\n\n> Only red.\n\nThen.")
    assert responses_to_markdown(run.responses) == shown
    assert conversation_to_markdown(result.context.messages) == f"> Look.\n\n{shown}"


def test_equal_prompts_in_a_row_are_both_shown() -> None:
    assert conversation_to_markdown([ModelRequest(parts=[UserPromptPart("Go.")])] * 2) == "> Go.\n\n> Go."


def test_failed_and_refused_calls_say_so() -> None:
    results: list[dict[str, Any]] = [
        {"id": "1", "name": "a", "content": "No.", "is_error": True},
        {"id": "2", "name": "b", "content": "No.", "is_error": True, "is_refused": True},
        {"id": "3", "name": "c", "content": "", "is_error": False},
    ]
    calls = [Response("tool_call", {"id": one["id"], "name": one["name"], "arguments": {}}, True) for one in results]
    calls.append(Response("tool_call", {"id": "4", "name": "d", "arguments": {}}, True))
    shown = responses_to_markdown([*calls, *(Response("tool_call_result", one, True, "tool") for one in results)])
    rows = shown.splitlines()[2:]
    assert [row.split("|")[3].strip() for row in rows] == [
        "<code>failed&#58; No&#46;</code>",
        "<code>refused&#58; No&#46;</code>",
        "<code>&#40;nothing&#41;</code>",
        "<code>&#8230;</code>",
    ]
