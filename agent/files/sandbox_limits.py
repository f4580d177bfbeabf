"""The entry point of a sandboxed process: sets limits that the system enforces, then runs the `main` of a module.

    python -I -B sandbox_limits.py MODULE MEMORY SECONDS APP ARGUMENT...

MEMORY is bytes of data, SECONDS is processor time. APP is the reading end of a pipe whose other end the app holds: the
process and its children end when it closes, however the app ends. The process can't write files. It can import packages
of this project, but does not run their `__init__`: that would take a second, and a worker does not need it.

On Linux kernels with Landlock (5.13), the process can read only Python's and the system's libraries, this package, and
the absolute paths in its arguments and in LD_LIBRARY_PATH. It can open no other file. So the server's environment,
memory, history and cookie key are out of reach, although they belong to the same user. Newer kernels also block TCP
(6.7) and signals to other processes (6.12).

On Linux kernels with seccomp (x86-64 and ARM64), the process can make only the system calls in `_CALLS`. They read
files, use memory and start threads. All others fail: sockets, programs, changes of files and their rights, limits and
signals of other processes. The doctor reports what the system lacks. On other systems only the limits of memory and
time apply.
"""

import errno
import importlib
import os
import select
import signal
import stat
import struct
import sys
from threading import Thread
from types import ModuleType

LIBRARIES = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/nix/store", "/etc/ld.so.cache", "/etc/localtime")
DEVICES = ("/dev/null", "/dev/urandom", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu")
"""The files that a sandboxed process can read besides Python and this package: libraries and machine facts."""
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_NO_NEW_PRIVILEGES = 38
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = (1 << bit for bit in range(4))
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
"""The number of file rights that Landlock knows, by its version. The sandbox drops all rights but those above."""

_SECCOMP = {"x86_64": 317, "aarch64": 277}
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CALLS = """
read 0 63, write 1 64, close 3 57, lseek 8 62, pread64 17 67, pwrite64 18 68, readv 19 65, writev 20 66, preadv 295 69,
open 2 -, openat 257 56, stat 4 -, lstat 6 -, fstat 5 80, newfstatat 262 79, statx 332 291, statfs 137 43,
fstatfs 138 44, access 21 -, faccessat 269 48, faccessat2 439 439, readlink 89 -, readlinkat 267 78, getdents 78 -,
getdents64 217 61, getcwd 79 17, fadvise64 221 223, poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, pipe 22 -,
pipe2 293 59, dup 32 23, dup2 33 -, dup3 292 24, mmap 9 222, mprotect 10 226, munmap 11 215, brk 12 214, mremap 25 216,
msync 26 227, mincore 27 232, madvise 28 233, get_mempolicy 239 236, rt_sigaction 13 134, rt_sigprocmask 14 135,
rt_sigreturn 15 139, sigaltstack 131 132, restart_syscall 219 128, sched_yield 24 124, nanosleep 35 101,
clock_nanosleep 230 115, clock_gettime 228 113, clock_getres 229 114, gettimeofday 96 169, time 201 -, times 100 153,
getpid 39 172, getppid 110 173, gettid 186 178, getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177,
getpgrp 111 -, getpgid 121 155, getgroups 115 158, uname 63 160, sysinfo 99 179, getrlimit 97 163, getrusage 98 165,
getpriority 140 141, getrandom 318 278, getcpu 309 168, sched_getaffinity 204 123, sched_getparam 143 121,
sched_getscheduler 145 120, sched_get_priority_max 146 125, sched_get_priority_min 147 126, exit 60 93,
exit_group 231 94, futex 202 98, futex_waitv 449 449, set_robust_list 273 99, get_robust_list 274 100,
set_tid_address 218 96, arch_prctl 158 -, rseq 334 293, membarrier 324 283
"""
"""The system calls that are allowed, with their numbers on x86-64 and ARM64. `_filter` allows some uses of others."""
_CLONE, _CLONE3, _PRLIMIT, _TGKILL = (56, 220), 435, (302, 261), (234, 131)
_THREAD = 0x10000
"""The flag of `clone` for a thread of the same process."""
_SOME_USES = {
    "fcntl": (72, 25, 1, (0, 1, 2, 3, 4, 1030)),  # copies and flags of files, but no signals
    "ioctl": (16, 29, 1, (0x5401, 0x5413, 0x541B, 0x5421, 0x5451)),  # terminals, bytes to read, flags
    "prctl": (157, 167, 0, (15, 16, 0x53564D41)),  # names of threads and of memory
}
"""The system calls of which one argument must have one of these values: both numbers, the argument, the values."""

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


def seccomp() -> bool:
    """Return True if the kernel can refuse system calls of a process, and this module knows those of the machine."""
    if sys.platform != "linux" or os.uname().machine not in _SECCOMP or sys.maxsize < 1 << 32:
        return False
    import ctypes

    refuse = ctypes.c_uint32(_refusal(0))
    return not ctypes.CDLL(None).syscall(_SECCOMP[os.uname().machine], 2, 0, ctypes.byref(refuse))


def restrict_calls() -> None:
    """Refuse all system calls of this process but those that `_filter` allows. See the top of this file.

    Raises `OSError` if a kernel with seccomp refuses the restriction.
    """
    if not seccomp():
        return
    import ctypes

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    machine = os.uname().machine
    code = _filter(machine)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    program = Program(len(code) // 8, code)
    if libc.syscall(_SECCOMP[machine], 1, 1, ctypes.byref(program)):  # for all threads
        raise OSError(ctypes.get_errno(), "seccomp refused it")


def _filter(machine: str) -> bytes:
    """Return the filter of system calls, as a program for the kernel: instructions of eight bytes."""
    load, equal, has_bit = 0x20, 0x15, 0x45
    column = [*_SECCOMP].index(machine)

    def step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("=HBBI", code, if_true, if_false, value)

    def end(result: int) -> bytes:
        return step(0x06, result)

    def argument(number: int, *, high: bool = False) -> bytes:
        return step(load, 16 + 8 * number + 4 * high)

    def when(number: int, *steps: bytes) -> bytes:
        return step(equal, number, 0, len(steps)) + b"".join(steps)

    def unless(code: int, *values: int) -> list[bytes]:
        """Allow if one of the values fits, and refuse otherwise."""
        tests = [one for value in values for one in (step(code, value, 0, 1), allow)]
        return [*tests, refuse]

    allow, refuse, zero = end(0x7FFF0000), end(_refusal(errno.EPERM)), step(equal, 0, 1, 0)
    code = [step(load, 4), step(equal, _ARCHITECTURES[machine], 1, 0), refuse, step(load, 0)]
    for line in _CALLS.replace("\n", " ").split(","):
        if (number := line.split()[1 + column]) != "-":
            code.append(when(int(number), allow))
    for *numbers, place, values in _SOME_USES.values():
        code.append(when(numbers[column], argument(place), *unless(equal, *values)))
    code.append(when(_CLONE[column], argument(0), *unless(has_bit, _THREAD)))
    # Reads its own limits: the process is 0, and there is no address of new ones.
    zeros = [one for part in (argument(0), argument(2), argument(2, high=True)) for one in (part, zero, refuse)]
    code.append(when(_PRLIMIT[column], *zeros, allow))
    code.append(when(_TGKILL[column], argument(0), *unless(equal, os.getpid())))  # `abort` does it
    code.append(when(_CLONE3, end(_refusal(errno.ENOSYS))))  # the C library then uses `clone`
    return b"".join([*code, refuse])


def _refusal(error: int) -> int:
    """Return the result of a filter that makes a system call fail with this error."""
    return 0x00050000 | error


def end_with(app: int) -> None:
    """End this process and its children as soon as the other end of the pipe `app` closes: when the app has ended.

    Linux does it, also while a library holds Python's lock. `PR_SET_PDEATHSIG` would end the process with the thread
    that started it. Elsewhere a thread waits.
    """
    if app < 0:
        return
    os.setpgid(0, 0)
    try:
        import fcntl

        # A description of its own, because the processes of an app would share the settings.
        own = os.open(f"/proc/self/fd/{app}", os.O_RDONLY | os.O_NONBLOCK)
        os.close(app)
        fcntl.fcntl(own, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(own, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    except (ImportError, AttributeError, OSError):
        Thread(target=_wait_for_end, args=(app,), daemon=True).start()
    else:
        if select.select([own], [], [], 0)[0]:  # it has ended before
            os.killpg(0, signal.SIGKILL)


def _wait_for_end(app: int) -> None:
    select.select([app], [], [])
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Run the module named on the command line. Its `main` gets the other arguments and returns the exit status."""
    module, memory, seconds, app, *arguments = sys.argv[1:]
    end_with(int(app))
    for name in ("", *PACKAGES):
        full = f"agent.{name}".rstrip(".")
        package = sys.modules[full] = ModuleType(full)
        package.__path__ = [os.path.join(ROOT, name)]
    importlib.import_module("agent.system.resources").limit_worker(int(memory), int(seconds))
    given = (*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *arguments)
    named = [path for path in given if os.path.isabs(path)]
    confine([ROOT, sys.prefix, sys.base_prefix, os.path.realpath(sys.base_prefix), *LIBRARIES, *DEVICES, *named])
    restrict_calls()
    sys.exit(importlib.import_module(module).main(arguments))


if __name__ == "__main__":
    main()
