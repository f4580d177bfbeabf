"""Reports failed and skipped tests, and runs failed ones again, in the process that sees all of them.

With `--rerun-alone`, failed tests run once more at the end, alone, so that a busy machine does not refuse a change.
Three at most get a second run. If all pass then, the run passes and reports them as flaky. A flaky test is a defect of
the product or of itself: find out which.

With `--only-listed-skips`, a test may be skipped only for a reason that `.ci/skips` lists.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MOST = 3
ALLOWED_SKIPS = Path(__file__).resolve().parent.parent / ".ci" / "skips"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of `.ci/run`, `make test` and `make pictures`."""
    parser.addoption("--rerun-alone", action="store_true", help="run failed tests once more at the end")
    parser.addoption("--only-listed-skips", action="store_true", help="fail if a test is skipped that .ci/skips omits")
    parser.addoption("--pictures", action="store_true", help="save the screenshots that tests take in tests/shots")


def pytest_configure(config: pytest.Config) -> None:
    """Register what was asked for."""
    if hasattr(config, "workerinput"):
        return
    if config.getoption("rerun_alone"):
        config.pluginmanager.register(Reruns())
    if config.getoption("only_listed_skips"):
        config.pluginmanager.register(Skips())


class Reruns:
    """Collects the failures of a run and runs their tests again."""

    def __init__(self) -> None:
        self._failed: dict[str, None] = {}
        """The failed tests in their order."""
        self._are_flaky = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure."""
        if report.failed:
            self._failed[report.nodeid] = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Run the failed tests again, unless there are too many. The session passes if all pass."""
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED or not 0 < len(self._failed) <= MOST:
            return
        print(f"\n\nrunning again, alone: {' '.join(self._failed)}", flush=True)
        options = [
            "-n",
            "0",
            "-m",
            "",
            "--hypothesis-profile",
            session.config.getoption("--hypothesis-profile") or "gate",
        ]
        done = subprocess.run([sys.executable, "-m", "pytest", *options, *self._failed], check=False)
        self._are_flaky = done.returncode == 0
        if self._are_flaky:
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Below the reports of the failures, name the flaky tests, and count them apart from the failed ones."""
        if not self._are_flaky:
            return
        flaky = [report for kind in ("failed", "error") for report in terminalreporter.stats.pop(kind, [])]
        terminalreporter._add_stats("flaky", flaky)
        for name in self._failed:
            terminalreporter.write_line(f"flaky: {name} failed beside other tests and passed alone", yellow=True)


class Skips:
    """Collects skipped tests and fails the session if `.ci/skips` does not list one."""

    def __init__(self) -> None:
        lines = ALLOWED_SKIPS.read_text(encoding="utf-8").splitlines()
        self._allowed = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        self._unlisted: list[str] = []

    def _look(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        if not any(allowed in reason for allowed in self._allowed):
            self._unlisted.append(f"{report.nodeid}: {reason}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a skipped test."""
        self._look(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a file that is skipped as a whole."""
        self._look(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the session if a skip is not listed."""
        if self._unlisted and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the names of the skipped tests."""
        for line in self._unlisted:
            terminalreporter.write_line(f"SKIPPED but not in .ci/skips: {line}", red=True)
