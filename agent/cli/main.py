"""The `switchboard` command: the web page, the chat in the terminal, the doctor, and the deployment to a Space."""

import os
import runpy
import sys
from importlib.util import find_spec

from agent.errors import MissingExtra
from agent.system.project import FILES

COMMANDS = {"chat": "agent", "doctor": "agent.doctor", "deploy": "agent.deploy"}
"""The module of each command, which reads its own options."""
_OF_THE_PAGE = ("", "doctor", "deploy")
"""Commands that need the packages of the page. "" serves it."""
HELP = """usage: switchboard [chat | doctor | deploy] [options]

Without a command it serves the web page. `switchboard chat --help` shows the options of the chat, and so on.

  chat    talk to a model in the terminal
  doctor  check the set-up and suggest fixes
  deploy  create or update the Hugging Face Space of the Spacefile
"""


def main() -> int:
    """Run the command that the first argument names. Return the exit status 2 for an unknown one."""
    name, *options = sys.argv[1:] or [""]
    if name in ("-h", "--help"):
        print(HELP, end="")
        return 0
    if name in _OF_THE_PAGE and find_spec("gradio") is None:
        print(MissingExtra(f"switchboard {name}".rstrip(), "page"), file=sys.stderr)
        return 1
    if not name:
        # Without -P, the folder of app.py would come first in the search for modules.
        os.execv(sys.executable, [sys.executable, "-P", str(FILES / "app.py")])
    if name not in COMMANDS:
        print(f"switchboard: there is no command {name!r}\n\n{HELP}", end="", file=sys.stderr)
        return 2
    sys.argv = [f"switchboard {name}", *options]
    runpy.run_module(COMMANDS[name], run_name="__main__")
    return 0
