"""Checks the types of the page's modules, as `jsconfig.json` says: `python -m tests.peers.check_types`."""

import subprocess
import sys

from agent.settings import ROOT
from tests.peers.install import MODULES, node

if __name__ == "__main__":
    command = [node(), str(MODULES / "typescript" / "bin" / "tsc"), "--project", str(ROOT / "jsconfig.json")]
    sys.exit(subprocess.run(command, check=False).returncode)
