"""Checks the types of the page's modules with TypeScript, as `jsconfig.json` says: `python -m tests.peers.check_types`."""

import subprocess
import sys

from tests.peers.install import MODULES, node

if __name__ == "__main__":
    sys.exit(subprocess.run([node(), str(MODULES / "typescript" / "bin" / "tsc"), "-p", "."], check=False).returncode)
