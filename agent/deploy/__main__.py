"""`python -m agent.deploy`: creates or updates the Space of the Spacefile, or with --dry-run describes it."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from huggingface_hub import constants, get_token
from huggingface_hub.utils import disable_progress_bars
from huggingface_hub.utils.logging import set_verbosity

from agent.deploy.hub import DeployError, Hub
from agent.deploy.plan import check_secrets, describe, find_secrets, make_plan, read_spacefile, redact_secrets
from agent.errors import AgentError
from agent.system.project import FILES, IS_INSTALLED

SILENT = 100
CHECKOUT = Path.cwd() if IS_INSTALLED else FILES
"""The project that is sent. A wheel does not contain all of it."""


def main(
    arguments: Sequence[str] | None = None,
    *,
    env: Mapping[str, str] = os.environ,
    root: Path = CHECKOUT,
    say: Callable[[str], None] = lambda line: print(line, flush=True),
    complain: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> int:
    """Deploy. Return the exit status: 0 when the page answers or the plan is printed, else 1."""
    parser = argparse.ArgumentParser(prog="python -m agent.deploy", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="print the plan; needs neither token nor network")
    parser.add_argument("--spacefile", type=Path, default=root / "Spacefile", metavar="PATH")
    parser.add_argument("--wait", type=float, default=1800, metavar="SECONDS", help="for the page (default: 1800)")
    options = parser.parse_args(arguments)
    try:
        plan = make_plan(read_spacefile(options.spacefile), root)
        secrets = find_secrets(plan.space, env)
        if options.dry_run:
            for line in describe(plan, secrets):
                say(line)
            return 0
        # This program reports each error once. With HF_DEBUG the client would log whole requests, including secrets.
        set_verbosity(SILENT)
        disable_progress_bars()
        token = get_token()
        if not token:
            raise DeployError("There is no token: set HF_TOKEN to one that may write, or run `hf auth login`.")
        say, complain = (redact_secrets(one, token, *secrets.values()) for one in (say, complain))
        check_secrets(plan, secrets, token)
        for note in plan.notes:
            say(f"Note: {note}")
        Hub(constants.ENDPOINT, token, say).deploy(plan, secrets, wait_seconds=options.wait)
    except AgentError as error:
        complain(str(error))
        return 1
    except KeyboardInterrupt:
        complain("Stopped watching. What was sent stays, and the hub goes on building.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
