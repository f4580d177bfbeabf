"""The doctor on the command line: one line per check, exit status 1 if there is a fault."""

import argparse
import asyncio
import json
import sys
from dataclasses import asdict

from agent.doctor.check import Check
from agent.doctor.examination import examine
from agent.errors import AgentError
from agent.settings import read_env_file, start_logging


def main() -> int:
    """Print the checks and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m agent.doctor", description="Checks the set-up and says what to do."
    )
    parser.add_argument("--json", action="store_true", help="one JSON array instead of lines")
    parser.add_argument("--online", action="store_true", help="also ask each hosted provider whether its key works")
    given = parser.parse_args()
    try:
        read_env_file()
    except AgentError as error:
        parser.exit(1, f"{error}\n")
    start_logging("CRITICAL")
    found = asyncio.run(_run_checks(given.online, lines=not given.json))
    if given.json:
        print(json.dumps([asdict(one) for one in found], indent=2, ensure_ascii=False))
    return 1 if any(one.state == "fault" for one in found) else 0


async def _run_checks(online: bool, lines: bool) -> list[Check]:
    found: list[Check] = []
    async for one in examine(online=online):
        found.append(one)
        if lines:
            fix = f"  ->  {one.fix}" if one.fix else ""
            print(f"{one.state:8} {one.name:10} {one.message}{fix}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
