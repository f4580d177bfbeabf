"""A child process that serves a model: starts it, watches it, and ends it with all processes that it started."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import httpx2

from agent.errors import LocalModelError, reason_of, without_paths
from agent.fetch import tls_context
from agent.i18n.text import N_, LocalizedText, _

_LINE_END = re.compile(r"[\r\n]+")


class ServerProcess:
    """A running process and the last lines of its output. The caller of `spawn` owns it and must `aclose` it.

    Its stdin is a pipe that stays open while we live. A child that watches it ends with us, even if we are killed.
    """

    def __init__(
        self, name: str, process: asyncio.subprocess.Process, on_line: Callable[[str], None], grace: float
    ) -> None:
        self._name = name
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._grace = grace
        self._on_line = on_line
        self._tail: deque[str] = deque(maxlen=60)
        streams = [stream for stream in (process.stdout, process.stderr) if stream]
        self._pumps = [asyncio.create_task(self._pump(stream)) for stream in streams]

    @classmethod
    async def spawn(
        cls,
        argv: Sequence[str],
        *,
        name: str,
        env: Mapping[str, str],
        on_line: Callable[[str], None],
        grace: float = 3.0,
    ) -> Self:
        """Start `argv` with `env` added to our environment. `on_line` gets each line of its stdout and stderr.

        `name` is shown to people. `grace` is how many seconds it has to end by itself after its stdin is closed, and
        again after SIGTERM. Raises `LocalModelError` if the program cannot be started at all.
        """
        pipe = asyncio.subprocess.PIPE
        try:
            # A separate session: Ctrl-C in the terminal reaches only us, and we end the child in our own order.
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=pipe, stdout=pipe, stderr=pipe, env={**os.environ, **env}, start_new_session=True
            )
        except OSError as error:
            raise LocalModelError(
                _("{server} cannot be started: {error}.", server=name, error=reason_of(error))
            ) from error
        return cls(name, process, on_line, grace)

    @property
    def pid(self) -> int:
        """The process id, which is also the id of the process group."""
        return self._process.pid

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines of its output."""
        return tuple(self._tail)

    @property
    def is_alive(self) -> bool:
        """True while the process runs."""
        return self._process.returncode is None

    async def wait(self) -> LocalModelError:
        """Wait until it has ended and all its output was read. Returns the reason for its end."""
        code = await self._process.wait()
        await asyncio.wait(self._pumps, timeout=1)
        return _exit_error(self._name, code, self._tail)

    async def wait_until_healthy(self, url: str, *, seconds: float) -> None:
        """Wait until `url` answers 200. Raises `LocalModelError` if the process ends first or the time runs out."""
        ending, tls = asyncio.create_task(self.wait()), await asyncio.to_thread(tls_context)
        try:
            async with asyncio.timeout(seconds), httpx2.AsyncClient(trust_env=False, timeout=5, verify=tls) as client:
                while not ending.done():
                    with contextlib.suppress(httpx2.HTTPError):
                        if (await client.get(url)).status_code == 200:
                            return
                    await asyncio.wait({ending}, timeout=0.1)
            raise ending.result()
        except TimeoutError as error:
            raise not_answered(self._name, seconds) from error
        finally:
            ending.cancel()

    def end(self) -> None:
        """Close its stdin, at which it ends. From any thread, also if the event loop has ended. Does not wait."""
        if (stdin := self._process.stdin) is None:
            return
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(stdin.close)
        elif (pipe := stdin.transport.get_extra_info("pipe")) is not None:
            pipe.close()

    async def aclose(self) -> None:
        """End it: close its stdin, terminate it after its grace, then kill its process group. Idempotent."""
        if self._process.stdin:
            self._process.stdin.close()
        for number in (None, signal.SIGTERM, signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM):
            if number and self.is_alive:
                self._signal(number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), self._grace)
                break
        # Read to the end: asyncio closes its pipes only then. Pipes that a stray grandchild holds open are abandoned.
        await asyncio.wait(self._pumps, timeout=1)
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if sys.platform == "win32":
                self._process.terminate()
            else:
                os.killpg(self._process.pid, number)

    async def _pump(self, stream: asyncio.StreamReader) -> None:
        rest = ""
        # Not readline: progress bars rewrite one line with \r for minutes and would exceed its limit.
        while data := await stream.read(65536):
            *lines, rest = _LINE_END.split(rest + data.decode("utf-8", "replace"))
            for line in lines:
                self._handle_line(line)
            rest = rest[-65536:]
        self._handle_line(rest)

    def _handle_line(self, line: str) -> None:
        if line.strip():
            self._tail.append(line.strip())
            self._on_line(line.strip())


def loop_runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    """Return True if the caller is in this event loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


_SIGNALS = {
    4: N_("{server} stopped at an instruction this processor does not have: its build needs AVX2."),
    7: N_("{server} could not read its weights from the disk (SIGBUS)."),
    9: N_("{server} was killed, most likely because memory ran out."),
}
_OTHER_SIGNAL = N_("{server} was ended by signal {number}.")


def not_answered(server: str, seconds: float) -> LocalModelError:
    """Return the error for a server that does not answer in time."""
    return LocalModelError(_("{server} did not answer within {seconds:.0f} seconds.", server=server, seconds=seconds))


def _exit_error(name: str, code: int, tail: Sequence[str]) -> LocalModelError:
    if code < 0:
        text = _SIGNALS.get(-code, _OTHER_SIGNAL)
        return LocalModelError(LocalizedText(text, {"server": name, "number": -code}))
    if why := reason(tail):
        return LocalModelError(_("{server} ended with status {status}: {reason}", server=name, status=code, reason=why))
    return LocalModelError(_("{server} ended with status {status} and gave no reason.", server=name, status=code))


def reason(lines: Sequence[str]) -> str:
    """Return the line of a log that best explains a failure; "" if there is none."""
    errors = [line for line in lines if re.search(r"\b\w*[Ee]rror\b", line)]
    return without_paths((errors or list(lines) or [""])[-1][:300])
