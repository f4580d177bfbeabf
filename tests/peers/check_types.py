"""Checks the types of the page's modules: `python -m tests.peers.check_types`.

The transcript's modules, which others can use, are checked strictly. Those of the page need no types of their own.
"""

import subprocess
import sys

from agent.settings import ROOT
from tests.peers.install import MODULES, node

CONFIGS = (ROOT / "jsconfig.json", ROOT / "agent" / "web" / "ui" / "jsconfig.json")

if __name__ == "__main__":
    tsc = [node(), str(MODULES / "typescript" / "bin" / "tsc"), "--project"]
    sys.exit(max(subprocess.run([*tsc, str(config)], check=False).returncode for config in CONFIGS))
