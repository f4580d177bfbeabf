"""With `--rerun-alone`, failed tests run once more at the end, alone, so that a busy machine does not refuse a change.

Three tests at most get a second run. If all pass then, the run passes and reports them as flaky. A flaky test is a
defect of the product or of itself: find out which.
"""

import subprocess
import sys
from typing import Any

import pytest

MOST = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--rerun-alone", action="store_true", help="run failed tests once more at the end")


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin in the process that sees all tests."""
    if config.getoption("rerun_alone") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Reruns())


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
