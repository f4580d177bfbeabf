"""The entry point of a sandboxed process: sets limits that the system enforces, then runs the `main` of a module.

    python -I -B sandbox_limits.py MODULE MEMORY SECONDS ARGUMENT...

MEMORY is bytes of data, SECONDS is processor time. The process can't write files. It can import packages of this
project, but does not run their `__init__`: that would take a second, and a worker does not need it.

On Linux kernels with Landlock (5.13), the process can read only Python's and the system's libraries, this package, and
the absolute paths in its arguments and in LD_LIBRARY_PATH. It can open no other file. So the server's environment,
memory, history and cookie key are out of reach, although they belong to the same user. Newer kernels also block TCP
(6.7) and signals to other processes (6.12). Programs that the process starts have the same limits (ctypes starts
`ldconfig` to find a library). Landlock blocks neither UDP nor a Unix socket that has a path. The doctor reports the
kernel's support. On other systems only the limits of memory and time apply.
"""

import importlib
import os
import stat
import struct
import sys
from types import ModuleType

LIBRARIES = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/nix/store", "/etc/ld.so.cache", "/etc/localtime")
DEVICES = ("/dev/null", "/dev/urandom", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu")
"""The files that a sandboxed process can read besides Python and this package: libraries and machine facts."""
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_NO_NEW_PRIVILEGES = 38
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = (1 << bit for bit in range(4))
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
"""The number of file rights that Landlock knows, by its version. The sandbox drops all rights but those above."""

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PACKAGES = ("documents", "media", "system", "tools")
"""The packages that contain the workers and their imports."""


def landlock() -> int:
    """Return the kernel's version of Landlock, or 0 if it has none."""
    if sys.platform != "linux":
        return 0
    import ctypes

    return max(0, ctypes.CDLL(None).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1))


def confine(paths: list[str]) -> None:
    """Allow this process to open only files below `paths`, for reading. See the top of this file.

    Raises `OSError` if a kernel with Landlock refuses the restriction.
    """
    version = landlock()
    if not version:
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)

    def call(number: int, *arguments: object) -> int:
        found: int = libc.syscall(number, *arguments)
        if found < 0:
            raise OSError(ctypes.get_errno(), "Landlock refused it")
        return found

    files = (1 << max(bits for since, bits in _FILE_RIGHTS.items() if since <= version)) - 1
    tcp, scopes = (3 if version >= 4 else 0), (3 if version >= 6 else 0)
    known = struct.pack("=QQQ", files, tcp, scopes)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    rules = call(_CREATE_RULESET, known, ctypes.c_size_t(len(known)), 0)
    for path in paths:
        try:
            file = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # not on this machine
        is_folder = stat.S_ISDIR(os.fstat(file).st_mode)
        rights = _READ_FILE | (_READ_DIR | _EXECUTE if is_folder else _WRITE_FILE if path == os.devnull else 0)
        call(_ADD_RULE, rules, 1, struct.pack("=Qi", rights, file), 0)
        os.close(file)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    call(_RESTRICT_SELF, rules, 0)
    os.close(rules)


def main() -> None:
    """Run the module named on the command line. Its `main` gets the other arguments and returns the exit status."""
    module, memory, seconds, *arguments = sys.argv[1:]
    for name in ("", *PACKAGES):
        full = f"agent.{name}".rstrip(".")
        package = sys.modules[full] = ModuleType(full)
        package.__path__ = [os.path.join(ROOT, name)]
    importlib.import_module("agent.system.rlimits").limit_worker(int(memory), int(seconds))
    given = (*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *arguments)
    named = [path for path in given if os.path.isabs(path)]
    confine([ROOT, sys.prefix, sys.base_prefix, os.path.realpath(sys.base_prefix), *LIBRARIES, *DEVICES, *named])
    sys.exit(importlib.import_module(module).main(arguments))


if __name__ == "__main__":
    main()
