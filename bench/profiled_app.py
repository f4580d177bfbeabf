"""Starts the app with a sampling profiler, for `bench.load --profile`. The app itself is unchanged.

The system interrupts the process after some ms of its CPU time, and the stack of the main thread at that moment is
counted. The stacks are written to the file in `BENCH_PROFILE` at the end: one line each, from the outermost call to the
innermost, with its number of samples. Flame graph tools read this format. SIGUSR1 starts and stops the counting.
`python -m bench.profiled_app FILE` prints where the time went.
"""

import os
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

SAMPLE_SECONDS = 0.004
ROOT = Path(__file__).resolve().parent.parent
MOST = 40
"""The most lines of each list."""


class Profiler:
    """Counts the stacks of the main thread."""

    def __init__(self) -> None:
        self.stacks = Counter[tuple[str, ...]]()
        self._names: dict[object, str] = {}
        self._counts = False

    def start(self) -> None:
        """Wait for the signal."""
        signal.signal(signal.SIGPROF, self._count)
        signal.signal(signal.SIGUSR1, self._toggle)

    def write(self, path: Path) -> None:
        """Stop, and write the stacks."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        path.write_text("".join(f"{';'.join(stack)} {count}\n" for stack, count in self.stacks.most_common()))

    def _toggle(self, number: int, frame: FrameType | None) -> None:
        self._counts = not self._counts
        seconds = SAMPLE_SECONDS if self._counts else 0
        signal.setitimer(signal.ITIMER_PROF, seconds, seconds)

    def _count(self, number: int, frame: FrameType | None) -> None:
        stack: list[str] = []
        while frame is not None:
            code = frame.f_code
            if (name := self._names.get(code)) is None:
                name = self._names[code] = f"{_short(code.co_filename)}:{code.co_qualname}"
            stack.append(name)
            frame = frame.f_back
        self.stacks[tuple(reversed(stack))] += 1


def _short(path: str) -> str:
    """Return the path below the repository, the packages or the standard library."""
    for root in (str(ROOT / "agent"), *sys.path):
        if root and path.startswith(root + "/"):
            return path[len(root) + 1 :] if not root.endswith("agent") else "agent/" + path[len(root) + 1 :]
    return path


def summary(path: Path) -> str:
    """Return the functions that were running, and those that had called them, with their shares of all samples."""
    own, within, total = Counter[str](), Counter[str](), 0
    for line in path.read_text().splitlines():
        joined, _, number = line.rpartition(" ")
        stack, count = joined.split(";"), int(number)
        total += count
        own[stack[-1]] += count
        within.update(dict.fromkeys(stack, count))
    lists = [
        [f"{title}, of {total} samples"]
        + [f"{100 * count / total:6.1f} %  {name}" for name, count in counted.most_common(MOST)]
        for title, counted in (("in the function itself", own), ("with what it calls", within))
    ]
    return "\n\n".join("\n".join(lines) for lines in lists)


def main() -> int:
    """Run the app, or print the profile in a file."""
    if len(sys.argv) > 1:
        print(summary(Path(sys.argv[1])))
        return 0
    import app

    profiler = Profiler()
    profiler.start()
    try:
        return app.main()
    finally:
        profiler.write(Path(os.environ["BENCH_PROFILE"]))


if __name__ == "__main__":
    raise SystemExit(main())
