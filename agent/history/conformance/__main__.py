"""`python -m agent.history.conformance module:variable` checks the store that this `Subject` describes."""

import asyncio
import os
import sys

from agent.errors import ConfigError
from agent.history.conformance.report import check_all, report


def main() -> int:
    """Check the store, print the report, and return 1 if it breaks a law."""
    if len(sys.argv) != 2:
        print("Usage: python -m agent.history.conformance module:variable", file=sys.stderr)
        return 2
    sys.path.insert(0, os.getcwd())
    try:
        outcomes = asyncio.run(check_all(sys.argv[1]))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return 0 if report(sys.argv[1], outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
