"""Child processes of the bench: started on loopback, measured through /proc, and ended with their own children."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from urllib.request import urlopen

import psutil

ROOT = Path(__file__).resolve().parent.parent


@contextmanager
def started(command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> Iterator[psutil.Popen]:
    """Run a command in the repository during the block. Its output goes to `log`."""
    with log.open("wb") as output:
        child = psutil.Popen(
            list(command),
            cwd=ROOT,
            env={**os.environ, "GRADIO_ANALYTICS_ENABLED": "False", **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield child
        finally:
            _end(child)


def wait_until_up(child: psutil.Popen, url: str, log: Path, seconds: float) -> None:
    """Return when `url` answers. Raises RuntimeError with the end of the log if the child ends or takes too long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and child.poll() is None:
        with suppress(OSError), urlopen(url, timeout=5):
            return
        time.sleep(0.05)
    raise RuntimeError(f"{url} does not answer:\n" + log.read_text(errors="replace")[-2000:])


class CpuMeter:
    """CPU seconds of a process with its threads and children, from the scheduler's nanosecond counts.

    It keeps the last count of each thread, so that the time of ended threads is not lost. For this, call `seconds` now
    and then.
    """

    def __init__(self, child: psutil.Popen) -> None:
        self.child = child
        self.counts: dict[str, int] = {}

    def seconds(self) -> float:
        """Return the CPU seconds so far."""
        for process in _family(self.child):
            for path in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
                with suppress(OSError):  # the thread has just ended
                    self.counts[str(path)] = int(path.read_text().split()[0])
        return sum(self.counts.values()) / 1e9

    def wait_until_idle(self, seconds: float = 30.0) -> None:
        """Return once the process has hardly worked for two seconds, at the latest after `seconds`.

        An app imports the SDKs of its providers some time after its page is ready. That is no part of an answer.
        """
        until, calm, last = time.monotonic() + seconds, 0, self.seconds()
        while calm < 4 and time.monotonic() < until:
            time.sleep(0.5)
            now = self.seconds()
            calm, last = (calm + 1 if now - last < 0.02 else 0), now


class OutOfTime(BaseException):
    """The bench received a signal to stop, or its time is over."""


@contextmanager
def bounded(seconds: int) -> Iterator[None]:
    """Raise OutOfTime in the block after `seconds` or on SIGTERM, so that children are always ended."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise OutOfTime(signal.Signals(number).name)

    for number in (signal.SIGALRM, signal.SIGTERM):
        signal.signal(number, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def _family(child: psutil.Popen) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(child.pid)
        return [process, *process.children(recursive=True)]
    return []


def _end(child: psutil.Popen) -> None:
    family = _family(child)
    with suppress(psutil.NoSuchProcess):
        child.terminate()
    _, alive = psutil.wait_procs(family, timeout=5)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    child.wait()
