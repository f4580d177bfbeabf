"""Python code of an answer runs in the visitor's browser, apart from the page, and its errors go back to the model."""

import json
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from tests.conftest import App, Visit, Visitor
from tests.peers.axe import violations
from tests.peers.install import MODULES
from tests.support.scripted_server import Config, Running
from tests.support.traffic import leaks_of

SERVER = Config(models=("Qwen/Qwen3-8B",), rate=500.0)
CONFIG = f'[server]\npython = "{MODULES / "pyodide"}"\n'


def failing(made: str) -> str:
    """Return a program that makes this in JavaScript, and fails with it."""
    return f"await js.eval('new Promise((_, no) => {made}.onerror = () => no(Error()))')"


ESCAPES = {
    "page": "js.parent.document",
    "cookie": "js.document.cookie",
    "storage": "js.localStorage.length",
    "database": "js.indexedDB.open('a')",
    "cache": "await js.caches.open('a')",
    "request": "await js.fetch('ADDRESS/leak')",
    "request of Pyodide": "await __import__('pyodide.http').http.pyfetch('ADDRESS/leak')",
    "page of the app": "await js.fetch('ADDRESS/conversations?leak')",
    "old request": "__import__('pyodide.http').http.open_url('ADDRESS/leak')",
    "script": "await js.eval('import(`ADDRESS/assets/leak.js`)')",
    "scripts": "js.importScripts('ADDRESS/leak.js')",
    "socket": "assert __import__('socket').create_connection(('127.0.0.1', 9), 1).recv(1)",
    "web socket": failing("new WebSocket(`ws://127.0.0.1:9/leak`)"),
    "events": failing("new EventSource(`ADDRESS/leak`)"),
    "worker": failing("new Worker(`ADDRESS/leak.js`)"),
    "program": "__import__('subprocess').run(['ls'], check=True)",
    "file of the server": "open('/etc/passwd').read()",
}
"""Programs that try to reach something. Each must fail."""
TRY = """
import js
failed = []
async def main():
    for name, code in ALL.items():
        try:
            await js_run(code)
        except BaseException:
            failed.append(name)
async def js_run(code):
    from pyodide.code import eval_code_async
    await eval_code_async(code, {"js": js})
await main()
print(",".join(failed))
"""


def fenced(code: str) -> str:
    """Return the message to which the scripted model answers with this program."""
    escaped = code.strip().replace("\\", "\\\\").replace("\n", "\\n")
    return f"!text Here:\\n\\n```python\\n{escaped}\\n```\\n\\nEnd."


def run(visitor: Visitor, code: str) -> Locator:
    """Let the model write a program, and run it. Return its output."""
    visitor.ask(fenced(code))
    visitor.bubbles.locator("pre").last.get_by_role("button", name="Run").click()
    output = visitor.page.locator(".python").last
    expect(output).to_be_visible()
    return output


@pytest.mark.gate("Python code runs in the visitor's browser, can be stopped, and its error goes back to the model.")
def test_python_runs_is_stopped_and_its_error_goes_back(own: App, visit: Visit) -> None:
    visitor = visit(own.url)
    output = run(visitor, "print('sum', sum(range(5)))\n[{'city': 'Oslo', 'people': 7}, {'city': 'Rome'}]")
    status = output.get_by_role("status")
    expect(status).to_have_text("The program has ended.")
    expect(output.locator(".out")).to_have_text("sum 10\n")
    expect(output.locator("tr")).to_have_text(["citypeople", "Oslo7", "Rome"])
    assert not violations(visitor.page)
    visitor.shot("python-table")
    output = run(visitor, "while True:\n    pass")
    status = output.get_by_role("status")
    expect(status).to_have_text("The program runs…")
    output.get_by_role("button", name="Stop").click()
    expect(status).to_have_text("The program was stopped.")
    expect(visitor.page.locator("iframe")).to_have_count(0)
    output = run(visitor, "while True:\n    pass")
    expect(output.get_by_role("status")).to_have_text("The program runs…")
    visitor.page.locator("#new").click()
    expect(visitor.mine).to_have_count(0)
    expect(visitor.page.locator("iframe")).to_have_count(0)
    output = run(visitor, "def half(x):\n    return x / 0\nhalf(3)")
    expect(output.locator(".out")).to_contain_text("ZeroDivisionError: division by zero")
    expect(output.locator(".out")).to_contain_text('File "<code>", line 2, in half')
    expect(output.locator(".out")).not_to_contain_text("_pyodide")
    visitor.shot("python-error")
    output.get_by_role("button", name="Fix this error").click()
    expect(visitor.mine.last).to_contain_text("This Python code reports:")
    expect(visitor.mine.last).to_contain_text("ZeroDivisionError")


def test_python_reaches_nothing_of_the_visitor(own: App, visit: Visit) -> None:
    visitor = visit(own.url)
    sent = leaks_of(visitor.page)
    ways = {name: one.replace("ADDRESS", own.url) for name, one in ESCAPES.items()}
    output = run(visitor, TRY.replace("ALL", json.dumps(ways)))
    expect(output.locator(".out")).to_have_text(",".join(ESCAPES) + "\n")
    assert sent == []
    assert visitor.page.context.pages == [visitor.page]


def test_endless_output_is_cut_and_can_be_stopped(own: App, visit: Visit) -> None:
    visitor = visit(own.url)
    output = run(visitor, "while True:\n    print('x' * 999)")
    expect(output.locator(".out")).to_contain_text("The rest of the output is not shown.")
    assert len(output.locator(".out").inner_text()) < 60_000
    visitor.ask("!text Still here.")
    output.get_by_role("button", name="Stop").click()
    expect(output.get_by_role("status")).to_have_text("The program was stopped.")


def test_program_that_floods_the_page_is_ended(own: App, visit: Visit) -> None:
    visitor = visit(own.url)
    output = run(visitor, "import js\nwhile True:\n    js.postMessage('x')")
    expect(output.get_by_role("status")).to_have_text("The program was stopped, because it wrote too much.")


def test_missing_files_are_explained(own: App, visit: Visit) -> None:
    visitor = visit(own.url)
    visitor.page.context.route("**/pyodide.asm.mjs", lambda route: route.abort())
    output = run(visitor, "1")
    expect(output.get_by_role("status")).to_contain_text("Python could not be loaded: ")
    visitor.page.context.unroute("**/pyodide.asm.mjs")
    output.locator("..").get_by_role("button", name="Run").click()
    expect(output.locator(".out")).to_have_text("1\n")


@pytest.mark.parametrize("code", ["import numpy", "import pandas as pd\npd.DataFrame()", "import nowhere.at_all"])
def test_missing_package_is_named(code: str, own: App, visit: Visit) -> None:
    """npm's package of Pyodide has the core alone."""
    visitor = visit(own.url)
    output, name = run(visitor, code), code.split()[1].partition(".")[0]
    told = f"Python has no package “{name}” on this page. The owner of the page can add it."
    expect(output.get_by_role("status")).to_have_text(told)
    expect(output.get_by_role("button", name="Fix this error")).to_be_visible()


PLOTS = """
import base64, sys, types
class Figure:
    def savefig(self, out, **_):
        out.write(base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="))
pyplot = types.ModuleType("matplotlib.pyplot")
pyplot.get_fignums, pyplot.figure = lambda: [1, 2], lambda _: Figure()
sys.modules["matplotlib.pyplot"] = pyplot
"""
"""Stands for matplotlib, which is in no package registry in a form for browsers."""


def test_plots_are_shown_as_pictures(own: App, visit: Visit) -> None:
    visitor = visit(own.url)
    output = run(visitor, PLOTS)
    expect(output.get_by_role("button", name="Plot 2")).to_be_visible()  # a press opens the viewer
    assert output.locator("img").first.evaluate("(one) => one.decode().then(() => one.naturalWidth)") == 1


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_output_on_a_phone(own: App, visit: Visit, dark: bool) -> None:
    visitor = visit(own.url, dark=dark, phone=True)
    output = run(visitor, "print('a long line ' * 20)\n[[1, 2]]")
    expect(output.get_by_role("status")).to_have_text("The program has ended.")
    visitor.shot(f"python-phone-{'dark' if dark else 'light'}")
    assert not violations(visitor.page)
    output.get_by_role("button", name="Close").click()
    expect(output).to_have_count(0)


def test_without_the_setting_nothing_runs(start_app: Callable[..., App], server: Running, visit: Visit) -> None:
    visitor = visit(start_app("", VLLM_BASE_URL=server.base_url).url)
    visitor.ask(fenced("print(1)"))
    expect(visitor.bubbles.locator("pre").get_by_role("button", name="Copy the code")).to_be_visible()
    expect(visitor.page.get_by_role("button", name="Run")).to_have_count(0)
