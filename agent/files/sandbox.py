"""The sandbox: runs a program in a separate process, without our keys, with limits of memory and time."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from threading import Lock, Thread
from time import monotonic
from types import ModuleType
from typing import IO, TypeVar

from agent.errors import InputError
from agent.files import sandbox_worker
from agent.files.images import KINDS, ImageLimits
from agent.files.remarks import SENTENCES, ConvertedMedia, refused
from agent.i18n.text import LocalizedText
from agent.system.media_types import detect_mime, label
from agent.system.threads import Threads

T = TypeVar("T")

_ENV = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT")
"""The only environment variables that a sandboxed process gets. Others can hold keys."""
_PIECE = 1 << 16
NICENESS = 10
"""The priority of a sandboxed process. On a busy machine it gets a ninth of the processor time that the app gets."""
_LAUNCHER = Path(__file__).with_name("sandbox_limits.py")


@dataclass(frozen=True, slots=True)
class SandboxProgram:
    """A module with a `main` function that runs in the sandbox.

    `memory` is in bytes of data and `seconds` is processor time; the system enforces both. `timeout_seconds` is
    wall-clock time and `max_output` is bytes; a process that exceeds one of them is killed.
    """

    module: ModuleType
    memory: int
    seconds: int
    timeout_seconds: int
    max_output: int = 1_000_000

    def command(self, *arguments: str) -> list[str]:
        """Return the command line that starts the program."""
        limits = (str(self.memory), str(self.seconds), str(*inherited() or (-1,)))
        return [sys.executable, "-I", "-B", str(_LAUNCHER), self.module.__name__, *limits, *arguments]


OUT_OF_LIMITS = (-getattr(signal, "SIGXCPU", 24), -signal.SIGABRT, -getattr(signal, "SIGKILL", 9))
"""The exit statuses of a process that took too much time or memory."""


class SandboxJob:
    """One run of a program in the sandbox. Owns the process."""

    def __init__(self, program: SandboxProgram, *arguments: str) -> None:
        self._program, self._arguments = program, arguments
        self._process: subprocess.Popen[bytes] | None = None
        self._killed, self._lock = False, Lock()

    def start(self) -> subprocess.Popen[bytes]:
        """Start the process, which waits for its input. Raises `OSError` if the system can't start it."""
        with self._lock:
            self._process = subprocess.Popen(
                self._program.command(*self._arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment(),
                pass_fds=inherited(),
                cwd=_LAUNCHER.anchor,
                bufsize=0,  # closing a buffered pipe waits for the thread that reads it
            )
            if hasattr(os, "setpriority"):  # not on Windows
                os.setpriority(os.PRIO_PROCESS, self._process.pid, NICENESS)
            if self._killed:
                self._process.kill()
            return self._process

    def run(self, data: bytes) -> tuple[int, bytes]:
        """Run it on `data` and return the exit status and the output.

        Raises `TimeoutError` when the process takes longer than the program's `timeout_seconds`, and `ValueError` when
        it writes more than `max_output`.
        """
        out, most = bytearray(), self._program.max_output
        until = monotonic() + self._program.timeout_seconds
        with self.start() as process:
            assert process.stdin
            assert process.stdout
            reader = Thread(target=_read, args=(process.stdout, out, most), daemon=True)
            try:
                for thread in (Thread(target=_write, args=(process.stdin, data), daemon=True), reader):
                    thread.start()
                reader.join(self._program.timeout_seconds)
                if len(out) > most:
                    raise ValueError(f"{self._program.module.__name__} wrote more than {most} bytes")
                process.wait(max(0.0, until - monotonic()))
                if reader.is_alive():
                    raise TimeoutError
            except (subprocess.TimeoutExpired, TimeoutError) as error:
                raise TimeoutError(f"{self._program.module.__name__} took too long") from error
            finally:
                process.kill()
        return process.returncode, bytes(out)

    def kill(self) -> None:
        """End the process now. Can be called from any thread, also before the process starts."""
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()


async def run_in_thread(threads: Threads, work: Callable[[Callable[[SandboxJob], None]], T]) -> T:
    """Return the result of `work`, which runs in a thread and gives each of its jobs to a function.

    Cancelling this kills the jobs, and waits for the end of the work.
    """
    jobs, is_cancelled = list[SandboxJob](), False

    def begin(job: SandboxJob) -> None:
        jobs.append(job)
        if is_cancelled:
            job.kill()

    running = asyncio.ensure_future(threads.run(work, begin))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        is_cancelled = True
        running.cancel()
        for job in jobs:
            job.kill()
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # otherwise asyncio logs that nobody has seen it
        raise


def _write(stream: IO[bytes], data: bytes) -> None:
    """Write all of `data` to an unbuffered pipe and close it. Stop if the process no longer reads."""
    rest = memoryview(data)
    with suppress(OSError, ValueError), stream:  # the job closes the pipe of a killed process
        while rest:
            rest = rest[stream.write(rest) :]


def _read(stream: IO[bytes], out: bytearray, most: int) -> None:
    """Append what an unbuffered pipe holds to `out`, until its end or until there is more than `most`."""
    with suppress(OSError, ValueError):
        while len(out) <= most and (piece := stream.read(_PIECE)):
            out += piece


def inherited() -> tuple[int, ...]:
    """Return the files that a sandboxed process inherits: a pipe that closes when this process ends. Windows has none.

    A forked process has a pipe of its own.
    """
    return _pipe(os.getpid())[:1] if os.name == "posix" else ()


@cache
def _pipe(process: int) -> tuple[int, int]:
    return os.pipe()


def environment() -> dict[str, str]:
    """Return the environment of a sandboxed process."""
    limits = {"MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1"}
    return limits | {name: os.environ[name] for name in _ENV if name in os.environ}


DECODING = SandboxProgram(
    sandbox_worker, memory=400 * 1024 * 1024, seconds=20, timeout_seconds=60, max_output=100_000_000
)
"""The libraries take 120 MB before they decode anything. The longest accepted audio needs a few seconds."""
MAX_HEADER_BYTES = 100_000
"""The most bytes that a decoder writes before the bytes of the file: a media type and sentences."""


def convert_image(
    data: bytes, limits: ImageLimits, *, on_start: Callable[[SandboxJob], None] = lambda _: None
) -> ConvertedMedia:
    """Convert an image for a model with these limits, in the sandbox (see `agent.files.images.convert_image`).

    `on_start` receives the job, which can be killed. Raises `InputError` if the image is refused.
    """
    found = detect_mime(data)
    if found not in KINDS:
        raise refused("no_readable_picture")
    try:
        most = limits.max_bytes + MAX_HEADER_BYTES
        out = run_decoder("picture", json.dumps(asdict(limits)), data=data, max_output=most, on_start=on_start)
        return _parse_output(out, limits)
    except ValueError as error:
        raise refused("broken_picture", kind=label(found)) from error


def open_image(data: bytes) -> tuple[str, bytes]:
    """Return the media type, and new bytes if it had to become PNG. Raises `ValueError` if it is not an image."""
    media_type, _, png = run_decoder("open", data=data).partition(b"\n")
    if media_type.decode() not in KINDS or (png and detect_mime(png) != "image/png"):
        raise ValueError("the decoder wrote invalid output")
    return media_type.decode(), png


def _parse_output(out: bytes, limits: ImageLimits) -> ConvertedMedia:
    """Validate the worker's output: an attack can have taken over the worker. Raises `ValueError` if invalid."""
    head, _, body = out.partition(b"\n")
    try:
        changes = json.loads(head)["done"]
        done = tuple(parse_sentence(json.dumps(change).encode()) for change in changes)
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError("the decoder wrote invalid output") from error
    found = detect_mime(body)
    if found not in (*limits.types, "image/png", "image/jpeg") or len(body) > limits.max_bytes:
        raise ValueError("the decoder wrote another type or more bytes than was requested")
    return ConvertedMedia(data=body, media_type=found, done=done)


def run_decoder(
    name: str,
    *args: str,
    data: bytes,
    max_output: int = DECODING.max_output,
    on_start: Callable[[SandboxJob], None] = lambda _: None,
) -> bytes:
    """Return the output of a `DECODING` job. Raises `InputError` for a refused file, `ValueError` for a broken one."""
    job = SandboxJob(replace(DECODING, max_output=max_output), name, *args)
    on_start(job)
    try:
        status, out = job.run(data)
    except TimeoutError as error:
        raise refused("slow_document") from error
    if status == sandbox_worker.REFUSED:
        raise InputError(parse_sentence(out.rpartition(b"\n")[2]))
    if status in OUT_OF_LIMITS:
        raise refused("slow_document")
    if status:
        raise ValueError(f"the decoder ended with {status}")
    return out


def parse_sentence(text: bytes) -> LocalizedText:
    """Parse the worker's sentence without trusting the worker. Raises `ValueError` if it is not one of ours."""
    try:
        message, values = json.loads(text)
        plain = {name: one if isinstance(one, int | float) else str(one)[:40] for name, one in values.items()}
        if message in SENTENCES.values():
            return LocalizedText(message, plain)
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError("the decoder wrote invalid output") from error
    raise ValueError("the decoder wrote invalid output")
