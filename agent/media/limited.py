"""The first code of a sandboxed process: it sets limits that the system keeps, then runs the `main` of a module.

    python -I -B limited.py MODULE MEMORY SECONDS ARGUMENT...

MEMORY is bytes of data, SECONDS is processor time. The process can't write files. Packages of this project are found,
but their `__init__` is not run: it would take a second, and a worker needs none of it.
"""

import importlib
import os
import sys
from types import ModuleType

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PACKAGES = ("media", "reading", "tools")
"""The packages in which workers lie and what they import."""


def limit(memory: int, seconds: int) -> None:
    """Set the limits of this process. A system without them (Windows) leaves the time limit to the parent process."""
    try:
        import resource
    except ImportError:
        return
    # The second limit of processor time is later, so that the first signal says that it was the time.
    wanted = {
        resource.RLIMIT_DATA: (memory, memory),
        resource.RLIMIT_CPU: (seconds, seconds + 1),
        resource.RLIMIT_FSIZE: (0, 0),
        resource.RLIMIT_CORE: (0, 0),
    }
    for name, (soft, hard) in wanted.items():
        most = resource.getrlimit(name)[1]
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(name, (soft, hard))


def main() -> None:
    """Run the module that the command line names; its `main` gets the other arguments and returns the exit status."""
    module, memory, seconds, *arguments = sys.argv[1:]
    limit(int(memory), int(seconds))
    for name in ("", *PACKAGES):
        full = f"agent.{name}".rstrip(".")
        package = sys.modules[full] = ModuleType(full)
        package.__path__ = [os.path.join(ROOT, name)]
    sys.exit(importlib.import_module(module).main(arguments))


if __name__ == "__main__":
    main()
