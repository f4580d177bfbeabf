"""`python -m agent.history.conformance module:variable` checks the store that this `Subject` describes."""

import asyncio
import os
import sys

from agent.errors import ConfigError
from agent.history.conformance.laws import CAPABILITIES
from agent.history.conformance.report import check_all, report

USAGE = f"""Usage: python -m agent.history.conformance module:variable [capability ...]
Capabilities: {", ".join(CAPABILITIES)}. Without one, all are checked."""


def main(arguments: list[str]) -> int:
    """Check the store and print the report. Return 0, or 1 if the store breaks a law, or 2 if it cannot be checked."""
    name, chosen = next(iter(arguments), ""), arguments[1:] or CAPABILITIES
    if not name or not set(chosen) <= set(CAPABILITIES):
        print(USAGE, file=sys.stderr)
        return 2
    sys.path.insert(0, os.getcwd())
    try:
        outcomes = asyncio.run(check_all(name, chosen))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return 0 if report(name, outcomes, chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
