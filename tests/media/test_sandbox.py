"""Sandboxed processes end with the app, and the system refuses them what no reader of files needs."""

import errno
import os
import re
import signal
import struct
import subprocess
import sys
import timeit
from collections.abc import Iterator
from pathlib import Path
from platform import machine

import psutil
import pytest

from agent.files import sandbox_limits
from agent.files.sandbox import DECODING, SandboxJob, SandboxProgram, inherited
from agent.files.sandbox_limits import seccomp
from agent.settings import ROOT
from tests.conftest import becomes

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="asks the system about processes")]

RUNS_CODE = SandboxProgram(timeit, memory=1 << 27, seconds=60, timeout_seconds=60)
"""A program whose `main` runs the given code."""

APP = """
import sys, timeit
from concurrent.futures import ThreadPoolExecutor
from agent.files import sandbox_limits
from agent.files.sandbox import SandboxJob, SandboxProgram
program = SandboxProgram(timeit, memory=1 << 27, seconds=60, timeout_seconds=60)
with ThreadPoolExecutor(1) as pool:
    process = pool.submit(SandboxJob(program, "-n1", "-r1", sys.argv[1]).start).result()
print(process.pid, process.stdout.readline().decode().strip(), flush=True)
sys.stdin.read()
"""
"""An app that starts a process from a thread that has ended since, and then waits."""
WORKS = "import time\nwhile time.process_time() < 2: pass"
WAITS = "import time; time.sleep(2)"
WAITS_AFTER_ITS_OUTPUT = "import os, time; os.close(1); time.sleep(2)"
SLEEPS = "import time; print('ready', flush=True); time.sleep(60)"
HOLDS_THE_LOCK = "print('ready', flush=True); sum(range(10**13))"


@pytest.mark.parametrize(
    ("code", "counts"), [(WORKS, True), (WAITS, False), (WAITS_AFTER_ITS_OUTPUT, True)], ids=["works", "waits", "hides"]
)
def test_only_work_counts_as_time_of_a_job(code: str, counts: bool) -> None:
    """A document would be refused as too slow when the machine is busy."""
    job = SandboxJob(RUNS_CODE, "-n1", "-r1", code)
    job.run(b"")
    assert (job.seconds > 1.9) is counts


@pytest.fixture
def app(request: pytest.FixtureRequest) -> Iterator["subprocess.Popen[bytes]"]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", APP, request.param], cwd=ROOT, stdin=pipe, stdout=pipe) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("app", [SLEEPS, HOLDS_THE_LOCK], ids=["sleeps", "holds Python's lock"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
def test_sandboxed_process_ends_with_the_app(app: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    assert app.stdout
    pid, ready = app.stdout.readline().split()
    assert ready == b"ready"
    reader = psutil.Process(int(pid))
    assert reader.is_running()  # the thread that started it has ended
    app.send_signal(number)
    app.wait(30)
    becomes(False, lambda: reader.is_running() and reader.status() != psutil.STATUS_ZOMBIE)


FAMILY = """
import os, sys, time
from agent.files.sandbox_limits import end_with
read, write = os.pipe()
if os.fork() == 0:
    os.close(write)
    end_with(read)
    if os.fork() == 0:
        print(os.getpid(), flush=True)
    time.sleep(60)
os.close(read)
sys.stdin.read()
"""


def test_child_of_sandboxed_process_ends_with_the_app() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", FAMILY], cwd=ROOT, stdin=pipe, stdout=pipe) as app:
        assert app.stdout
        grandchild = psutil.Process(int(app.stdout.readline()))
        child = grandchild.parent()
        assert child
        app.kill()
        for one in (child, grandchild):
            becomes(False, lambda one=one: one.is_running() and one.status() != psutil.STATUS_ZOMBIE)


def test_process_started_after_the_end_of_the_app_does_not_run() -> None:
    code = (
        "import os; from agent.files.sandbox_limits import end_with; read, write = os.pipe(); os.close(write); "
        "end_with(read); print('runs')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")


def test_forked_app_has_a_pipe_of_its_own() -> None:
    code = """
import os
from agent.files.sandbox import inherited
before = inherited()
assert inherited() == before
if os.fork() == 0:
    os._exit(inherited() == before)
raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=True)
    assert len(inherited()) == 1


CALLS = {
    "chmod": "os.chmod(file, 0o777)",
    "fchmod": "os.chmod(opened, 0o777)",
    "chown": "os.chown(file, 0, 0)",
    "lchown": "os.lchown(file, 0, 0)",
    "set attribute": "os.setxattr(file, 'user.a', b'b')",
    "remove attribute": "os.removexattr(file, 'user.a')",
    "set time": "os.utime(file)",
    "link": "os.link(file, file + '2')",
    "symbolic link": "os.symlink(file, '/tmp/sandbox-link')",
    "rename": "os.rename(file, file + '2')",
    "remove": "os.unlink(file)",
    "folder": "os.mkdir('/tmp/sandbox-folder')",
    "device": "os.mkfifo('/tmp/sandbox-device')",
    "truncate": "os.truncate(file, 0)",
    "change folder": "os.chdir('/')",
    "change root": "os.chroot('/')",
    "mount": "call(165, b'none', b'/mnt', b'tmpfs', 0, None)",
    "unmount": "call(166, b'/mnt', 0)",
    "unshare": "call(272, 0x10000000)",
    "fork": "os.fork()",
    "vfork": "subprocess.run(['/bin/true'])",
    "program": "os.execv('/bin/true', ['true'])",
    "program of a file": "call(322, opened, b'', None, None, 0x1000)",
    "new kind of clone without a thread": "call(56, 17, 0, 0, 0, 0)",
    "signal": "os.kill(os.getppid(), 0)",
    "signal to a thread": "call(234, os.getppid(), os.getppid(), 0)",
    "signal by a file": "fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getppid())",
    "signal of a file": "fcntl.fcntl(pipe, fcntl.F_SETSIG, 9)",
    "queued signal": "call(129, os.getppid(), 0, None)",
    "file of a process": "os.pidfd_open(os.getppid())",
    "trace": "call(101, 16, os.getppid(), 0, 0)",
    "be traced": "call(101, 0, 0, 0, 0)",
    "read memory": "call(310, os.getppid(), None, 0, None, 0, 0)",
    "write memory": "call(311, os.getppid(), None, 0, None, 0, 0)",
    "limits of another": "resource.prlimit(os.getppid(), resource.RLIMIT_CPU)",
    "own limits": "call(302, 0, resource.RLIMIT_CPU, struct.pack('QQ', 1, 1), None)",
    "old own limits": "call(160, resource.RLIMIT_CPU, struct.pack('QQ', 1, 1))",
    "priority": "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
    "processors": "os.sched_setaffinity(os.getppid(), {0})",
    "group": "os.setpgid(0, 0)",
    "session": "os.setsid()",
    "user": "os.setuid(os.getuid())",
    "socket": "socket.socket(socket.AF_INET)",
    "datagram": "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)",
    "unix socket": "socket.socket(socket.AF_UNIX)",
    "pair of sockets": "socket.socketpair()",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "connect": "call(42, opened, None, 0)",
    "add key": "call(248, b'user', b'a', b'b', 1, -3)",
    "keys": "call(250, 0, -3, 0)",
    "bpf": "call(321, 0, None, 0)",
    "io_uring": "call(425, 1, None)",
    "file in memory": "os.memfd_create('a')",
    "performance": "call(298, None, 0, -1, -1, 0)",
    "page faults": "call(323, 0)",
    "shared memory": "call(29, 0, 4096, 0o1600)",
    "queue of messages": "call(68, 0, 0o1600)",
    "personality": "call(135, 0xffffffff)",
    "module": "call(313, opened, b'', 0)",
    "clock": "time.clock_settime(time.CLOCK_REALTIME, time.time())",
    "name of the machine": "call(170, b'a', 1)",
    "log of the kernel": "call(103, 10, None, 0)",
    "watch files": "call(254, 0, b'/', 0)",
    "privileges": "call(157, 38, 0, 0, 0, 0)",
    "dumpable": "call(157, 4, 1, 0, 0, 0)",
    "open by handle": "call(304, opened, None, 0)",
    "call of 32 bits": "call(0x40000000 | 90, file.encode(), 0o777)",
    "unknown call": "call(100000)",
}
HEADERS = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}


def numbers_of(machine: str) -> dict[str, int]:
    """Return the numbers of the system calls of a machine, from the kernel's headers. ARM64 has the generic ones."""
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", Path(HEADERS[machine]).read_text())
    return {name: int(number) for name, number in found}


def outcome(code: bytes, machine: str, number: int, *arguments: int) -> int:
    """Run the filter as the kernel does, and return its result for a system call."""
    wide = (*arguments, *(0,) * (6 - len(arguments)))
    data, at, loaded = struct.pack("=iIQ6Q", number, sandbox_limits._ARCHITECTURES[machine], 0, *wide), 0, 0
    while True:
        kind, if_true, if_false, value = struct.unpack_from("=HBBI", code, 8 * at)
        at += 1
        match kind:
            case 0x20:
                (loaded,) = struct.unpack_from("=I", data, value)
            case 0x15 | 0x45:
                at += if_true if (loaded == value if kind == 0x15 else loaded & value) else if_false
            case _:
                assert kind == 0x06
                return value


@pytest.mark.skipif(not all(Path(one).exists() for one in HEADERS.values()), reason="no headers of the kernel")
@pytest.mark.parametrize("machine", HEADERS)
def test_numbers_of_system_calls_are_those_of_the_kernel(machine: str) -> None:
    known, column = numbers_of(machine), [*HEADERS].index(machine)
    named = [line.split() for line in sandbox_limits._CALLS.replace("\n", " ").split(",")]
    wanted = {row[0]: row[1 + column] for row in named}
    wanted |= {name: row[column] for name, row in sandbox_limits._SOME_USES.items()}
    wanted |= {"clone": sandbox_limits._CLONE[column], "clone3": sandbox_limits._CLONE3}
    wanted |= {"prlimit64": sandbox_limits._PRLIMIT[column], "tgkill": sandbox_limits._TGKILL[column]}
    wanted |= {"seccomp": sandbox_limits._SECCOMP[machine], "landlock_create_ruleset": sandbox_limits._CREATE_RULESET}
    wanted |= {"landlock_add_rule": sandbox_limits._ADD_RULE, "landlock_restrict_self": sandbox_limits._RESTRICT_SELF}
    for name, number in wanted.items():
        theirs = known.get(name, known.get("fstatat" if name == "newfstatat" else name))
        assert str(number) == str("-" if theirs is None else theirs), name


@pytest.mark.skipif(not all(Path(one).exists() for one in HEADERS.values()), reason="no headers of the kernel")
@pytest.mark.parametrize("machine", HEADERS)
def test_filter_of_each_machine_allows_only_its_table(machine: str) -> None:
    """The filter for another machine cannot be run here, so its program is run step by step."""
    code, column, known = sandbox_limits._filter(machine), [*HEADERS].index(machine), numbers_of(machine)
    allow, refuse = 0x7FFF0000, sandbox_limits._refusal(errno.EPERM)
    rows = [line.split() for line in sandbox_limits._CALLS.replace("\n", " ").split(",")]
    allowed = {int(row[1 + column]) for row in rows if row[1 + column] != "-"}
    some = {known[name] for name in ("fcntl", "ioctl", "prctl", "clone", "prlimit64", "tgkill")}
    for number in range(600):
        if number not in some and number != known["clone3"]:
            assert outcome(code, machine, number, 1, 99, 1) == (allow if number in allowed else refuse), number
    assert outcome(code, machine, known["clone3"]) == sandbox_limits._refusal(errno.ENOSYS)
    uses = {
        ("fcntl", 3, 3): allow, ("fcntl", 3, 8): refuse, ("ioctl", 1, 0x5401): allow, ("ioctl", 1, 0x5412): refuse,
        ("prctl", 15): allow, ("prctl", 4): refuse, ("clone", 0x10F00): allow, ("clone", 17): refuse,
        ("prlimit64", 0, 7, 0): allow, ("prlimit64", 0, 7, 1): refuse, ("prlimit64", 0, 7, 1 << 32): refuse,
        ("prlimit64", 1, 7, 0): refuse, ("tgkill", os.getpid()): allow, ("tgkill", 1): refuse,
    }  # fmt: skip
    for (name, *arguments), result in uses.items():
        assert outcome(code, machine, known[name], *arguments) == result, (name, arguments)
    other = next(one for one in HEADERS if one != machine)
    assert outcome(code, other, known["read"]) == refuse


TRYING = """
import ctypes, errno, fcntl, os, resource, socket, struct, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
file, (pipe, _) = sys.executable, os.pipe()
opened = os.open(file, os.O_RDONLY)
def call(*arguments):
    if libc.syscall(*[ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]) < 0:
        raise OSError(ctypes.get_errno(), "")
for name, code in %r.items():
    try:
        eval(code)
        print(name, "allowed", sep=": ")
    except OSError as error:
        print(name, errno.errorcode[error.errno], sep=": ")
"""


@pytest.mark.skipif(not seccomp(), reason="this kernel has no seccomp")
@pytest.mark.skipif(machine() != "x86_64", reason="the numbers are those of x86-64")
def test_sandbox_refuses_all_system_calls_that_no_reader_needs() -> None:
    status, out = SandboxJob(RUNS_CODE, "-n1", "-r1", TRYING % CALLS).run(b"")
    found = dict(line.split(": ") for line in out.decode().splitlines() if ": " in line)
    assert status == 0
    assert {name: outcome for name, outcome in found.items() if name in CALLS and outcome != "EPERM"} == {}
    assert CALLS.keys() <= found.keys()


@pytest.mark.skipif(not seccomp(), reason="this kernel has no seccomp")
def test_sandbox_still_has_threads_clocks_and_aborts() -> None:
    code = """
import os, random, resource, threading, time
threads = [threading.Thread(target=time.sleep, args=(0.01,)) for _ in range(8)]
for one in threads: one.start()
for one in threads: one.join()
resource.getrlimit(resource.RLIMIT_CPU), os.cpu_count(), os.urandom(4), os.listdir(os.path.dirname(os.__file__))
print("done", flush=True)
os.abort()
"""
    assert SandboxJob(RUNS_CODE, "-n1", "-r1", code).run(b"") == (-signal.SIGABRT, b"done\n")


def test_sandbox_without_seccomp_still_runs() -> None:
    code = """
import sys
from agent.files import sandbox_limits
sandbox_limits.seccomp = lambda: False
sys.argv[1:] = ["timeit", str(1 << 27), "5", "-1", "-n1", "-r1", "print('runs')"]
sandbox_limits.main()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=60, check=True)
    assert done.stdout.startswith(b"runs")


@pytest.mark.skipif(not hasattr(os, "getpriority"), reason="the system has no priorities of processes")
def test_sandboxed_process_lets_the_app_go_first() -> None:
    """On a busy machine, decoders made every message wait."""
    with SandboxJob(DECODING, "listen").start() as process:
        assert os.getpriority(os.PRIO_PROCESS, process.pid) > os.getpriority(os.PRIO_PROCESS, 0)
        process.kill()
