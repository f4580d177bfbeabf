"""Diagnosis of this set-up, with a fix for each fault: `python -m agent.doctor`, docs/deployment.md.

It checks the same resources as the app, in the same way. It does not change conversations and prints no key. It prints
one line per check, and its exit status is 1 if there is a fault.
"""

import argparse
import asyncio
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import asdict, replace

from agent.doctor import machine, models, storage
from agent.doctor.check import Check, fault, ok
from agent.errors import AgentError
from agent.models.catalog import use_table_in
from agent.settings import Settings, load_settings, read_env_file, start_logging

log = logging.getLogger(__name__)

CheckFunction = Callable[[], Awaitable[list[Check]]]


async def examine(env: Mapping[str, str] = os.environ, *, online: bool = False) -> AsyncIterator[Check]:
    """Yield every check when it is made. `online` also tests the key of each hosted provider. Never raises."""
    hidden = _hidden(env)

    async def run_check(name: str, check: CheckFunction) -> list[Check]:
        try:
            found = await check()
        except AgentError as error:
            found = [fault(name, str(error), "See docs/configuration.md.")]
        except Exception as error:  # one check that breaks must not prevent the others
            log.debug("the check of %s failed", name, exc_info=True)
            message = f"this could not be checked ({type(error).__name__})"
            found = [fault(name, message, "Run it again with LOG_LEVEL=DEBUG, and report what it prints.")]
        return [replace(one, message=_without(one.message, hidden), fix=_without(one.fix, hidden)) for one in found]

    settings: list[Settings] = []

    async def check_settings() -> list[Check]:
        settings.append(load_settings(env=env))
        use_table_in(settings[0].data_dir)
        return [ok("settings", "they can be read")]

    for one in [*await run_check("python", machine.python), *await run_check("settings", check_settings)]:
        yield one
    for name, check in _check_functions(settings[0], env, online).items() if settings else ():
        for one in await run_check(name, check):
            yield one


def _check_functions(settings: Settings, env: Mapping[str, str], online: bool) -> dict[str, CheckFunction]:
    local = settings.local
    return {
        "server": lambda: models.server(local),
        "llama.cpp": lambda: models.llama(local),
        "weights": lambda: models.weights(local),
        "keys": lambda: models.keys(env, online=online),
        "embeddings": lambda: models.embeddings(settings.embeddings, env, online=online),
        "store": lambda: storage.store(settings),
        "attachments": lambda: storage.attachments(settings),
        "disk": lambda: storage.disk(settings),
        "sandbox": machine.sandbox,
        "port": lambda: machine.port(settings.host, settings.port),
        "space": lambda: storage.space(settings, env),
    }


def _hidden(env: Mapping[str, str]) -> list[str]:
    """Return the texts that must never be printed: keys and passwords in addresses, the longest first."""
    keys = [value for name, value in env.items() if any(word in name for word in ("KEY", "TOKEN", "SECRET"))]
    for value in env.values():
        if "@" in value:
            address = value.partition("://")[2].partition("/")[0] or value
            keys.append(address.rpartition("@")[0])
    return sorted({key.strip() for key in keys if len(key.strip()) >= 4}, key=len, reverse=True)


def _without(text: str, hidden: list[str]) -> str:
    for key in hidden:
        text = text.replace(key, "…")
    return " ".join(text.split())


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
