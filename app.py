"""Starts the web page: loads the settings and runs the server that is built from them."""

import gc
import os
import signal
import sys


# Until the server handles signals there is nothing to save. The first process of a container ignores unhandled signals.
def leave(number: int, _frame: object) -> None:
    """Exit at once."""
    os._exit(0 if number == signal.SIGTERM else 128 + number)


signal.signal(signal.SIGTERM, leave)
signal.signal(signal.SIGINT, leave)

os.umask(0o077)  # only this user can read the files that the app writes, including uploads
gc.disable()  # imports create no garbage, and looking for it takes half a second; the server enables it later
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

from agent.errors import AgentError
from agent.settings import load_settings, read_env_file, start_logging
from agent.web.gradio_compat.import_hook import import_gradio

try:
    read_env_file()
except AgentError as error:
    sys.exit(str(error))
import_gradio()

from agent.web.server import keep_content_out_of_logs, serve


def main() -> int:
    """Run the page and return the exit status."""
    start_logging("WARNING", "%(levelname)s %(name)s: %(message)s")
    keep_content_out_of_logs()
    try:
        return serve(load_settings(), say=lambda line: print(line, flush=True))
    except AgentError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
