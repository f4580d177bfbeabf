"""Breaks the package on purpose, and says which breaks the quick tests miss: `make mutants`, or with words of a break.

Each row of `BREAKS` replaces one piece of code in a copy of the project and runs the tests named beside it, without
those that `make test-fast` leaves out. `--gate` runs those of `make test`. A row whose code has changed, or whose
tests fail without the break, is reported: write it anew, with another break of the same kind.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from agent.settings import ROOT

GATE = "not full and not browser and not vllm and not container and not s3"
FAST = f"{GATE} and not slow and not weights"
SECONDS = 600
"""The longest time of the tests of one break: a break can make a test wait for ever."""


BREAKS: dict[str, list[tuple[str, str, str, str]]] = {
    "agent/web/middleware/origins.py": [
        ("CORP header", '-policy", "same-origin"),  # or', '-policy", "cross-origin"),  # or', "web/test_isolation.py"),
        ("sniffing header", '    ("x-content-type-options", "nosniff"),\n', "", "web/test_isolation.py"),
        (
            "answers that set a cookie are cached",
            'headers["cache-control"] = "no-store"',
            'headers["cache-control"] = "private"',
            "web/test_isolation.py",
        ),
        (
            "foreign page changes something",
            'if scope["method"] not in READ and is_foreign',
            "if False and is_foreign",
            "web/test_isolation.py",
        ),
    ],
    "agent/web/media_route.py": [
        (
            "temporary files are cached",
            'if file.is_kept else "no-store"',
            'if True else "no-store"',
            "web/test_media_route.py",
        ),
        ("HTML files open inline", "if is_inline else f", "if True else f", "web/test_media_route.py"),
        (
            "text files open inline",
            '("image/", "audio/")',
            '("image/", "audio/", "text/plain")',
            "web/test_media_route.py",
        ),
        ("files are cached for ever", "max-age=86400", "max-age=31536000", "web/test_media_route.py"),
    ],
    "agent/web/app.py": [
        ("icons are cached for ever", "max-age=86400", "max-age=31536000", "web/test_static_files.py")
    ],
    "agent/web/middleware/page_delivery.py": [
        ("stand-ins are cached for a day", "max-age=3600", "max-age=86400", "web/test_static_files.py")
    ],
    "agent/web/link_routes.py": [
        ("days of a link", "Field(gt=0, le=MAX_DAYS, ", "Field(gt=0, ", "web/test_links.py"),
        (
            "shared files in search engines",
            '"no-store", "x-robots-tag": "noindex, nofollow"})',
            '"no-store"})',
            "web/test_link_files.py",
        ),
    ],
    "agent/web/chat/importer.py": [
        ("order of imported chats", "sorted(found, key=lambda one: one.updated_at)", "found", "web/test_transfer.py")
    ],
    "agent/files/pdf.py": [
        ("pages of a PDF", "if len(document) > MAX_PAGES:", "if False:", "media/test_file_limits.py")
    ],
    "agent/files/images.py": [
        ("scans of a JPEG", ") > MAX_SCANS:", ") > 10 * MAX_SCANS:", "media/test_file_limits.py")
    ],
    "agent/web/run_event_routes.py": [
        (
            "event streams are cached",
            '"no-store, no-transform"',
            '"public"',
            "web/test_run_log.py web/test_heavy_work.py web/test_lost_events.py",
        ),
        (
            "stream without pings",
            'yield ": ping\\n\\n"',
            "pass",
            "web/test_run_log.py web/test_heavy_work.py web/test_lost_events.py web/test_lost_processes.py",
        ),
        (
            "repeated event after a reconnection",
            "bisect_right(self",
            "-1 + bisect_right(self",
            "web/test_run_log.py web/test_lost_processes.py web/test_lost_events.py",
        ),
    ],
    "agent/web/chat/answers.py": [
        (
            "owner of a running answer",
            "live.run.id == run_id and live.owner == owner",
            "live.run.id == run_id",
            "web/test_run_log.py web/test_conversation_list.py web/test_chat_actions.py web/test_temporary.py",
        ),
        (
            "owner of a conversation's answer",
            "found is not None and found.owner == owner else",
            "found is not None else",
            "web/test_run_log.py web/test_conversation_list.py web/test_chat_actions.py web/test_temporary.py",
        ),
        (
            "owner of a run on another process",
            "unfinished(owner=owner) if run.run_id",
            "unfinished() if run.run_id",
            "web/test_lost_processes.py web/test_lost_events.py web/test_replica_undo.py",
        ),
    ],
    "agent/web/chat/conversation_list.py": [
        (
            "owner of a deletion",
            "deleted is not None and deleted.conversation.owner == owner",
            "deleted is not None",
            "web/test_conversation_list.py web/test_replica_undo.py web/test_temporary.py",
        )
    ],
    "agent/web/chat/branches.py": [
        (
            "undo during a new answer",
            "if await self._is_answered(conversation.id, owner):",
            "if False:",
            "web/test_branches.py web/test_chat_actions.py web/test_transfer.py",
        ),
        (
            "branch order",
            "return max(hidden, key",
            "return min(hidden, key",
            "web/test_branches.py web/test_chat_actions.py",
        ),
        (
            "newest answer of a question",
            "answers[-1] for answers",
            "answers[0] for answers",
            "web/test_branches.py web/test_chat_actions.py",
        ),
    ],
    "agent/web/chat/temporary_stores.py": [
        (
            "owner of a temporary chat",
            "chat is None or chat.owner != owner",
            "chat is None",
            "web/test_temporary.py web/test_page_sessions.py",
        )
    ],
    "agent/web/chat/model_menu.py": [
        ("keys are never forgotten", "loop.call_later(self._seconds,", "loop.call_later(1e9,", "web/test_api_keys.py"),
        (
            "use does not keep a key",
            "            found.timer.cancel()\n        # In",
            "            return\n        # In",
            "web/test_api_keys.py",
        ),
    ],
    "agent/history/key_value.py": [
        (
            "key-value: events of a run twice",
            " or events.first != run.last + 1:",
            ":",
            "history/test_json_files.py history/test_conformance.py",
        ),
        (
            "key-value: events after the end of a run",
            "if place != (events.owner, events.conversation_id) or run.ended_at is not None or",
            "if place != (events.owner, events.conversation_id) or",
            "history/test_json_files.py history/test_conformance.py",
        ),
        (
            "key-value: owner of a link",
            "if item.owner != owner:",
            "if False:",
            "history/test_json_files.py history/test_conformance.py",
        ),
    ],
    "agent/history/memory.py": [
        (
            "memory: owner of a conversation",
            "return self._items.get(owner, {}).get(id_)",
            "return self._items.get(self._owners.get(id_, owner), {}).get(id_)",
            "history/test_conformance.py",
        )
    ],
    "agent/providers/discovery.py": [
        (
            "local server through a proxy",
            'trust_env=host not in ("localhost", "127.0.0.1", "::1")',
            "trust_env=True",
            "providers/test_discovery.py",
        ),
        (
            "first model of a server",
            "key=lambda entry: not _chats",
            "key=lambda entry: _chats",
            "providers/test_discovery.py",
        ),
    ],
    "agent/web/client_address.py": [
        ("proxy header: which address", "_forwarded(scope)[-1]", "_forwarded(scope)[0]", "web/test_public_limits.py"),
        (
            "limit of an address",
            "used >= max(free, always)",
            "used > max(free, always)",
            "web/test_heavy_work.py web/test_public_limits.py web/test_large_requests.py",
        ),
    ],
    "agent/web/middleware/requests.py": [
        (
            "proxy header: https",
            'get("x-forwarded-proto", "")',
            'get("x-forwarded-scheme", "")',
            "web/test_isolation.py web/test_page_head.py",
        )
    ],
    "agent/web/middleware/visitor_cookie.py": [
        ("cookie can be read by scripts", "; HttpOnly", "", "web/test_isolation.py")
    ],
    "agent/web/chat/attachments.py": [
        (
            "files of a message over the limit",
            "await UPLOADS.run(check_files, files, max_bytes)",
            "pass",
            "web/test_public_limits.py",
        )
    ],
    "agent/web/heavy_work.py": [
        ("limit of requests a minute", "if len(times) >= most:", "if len(times) > most:", "web/test_heavy_work.py")
    ],
    "agent/providers/retry.py": [
        ("retries without end of a quota", '"quota", ', "", "core/test_retry.py core/test_failures.py"),
        ("one retry more", "if tried > retries", "if tried > retries + 1", "core/test_retry.py"),
    ],
    "agent/runtime/usage.py": [
        (
            "tokens of a resumed run",
            "tokens=before.tokens + timings",
            "tokens=timings",
            "core/test_run_limits.py core/test_suspension.py",
        ),
        (
            "money of a resumed run",
            "dollars=before.dollars + (",
            "dollars=(",
            "core/test_run_limits.py core/test_suspension.py",
        ),
        ("allowed limit stays used", "return replace(self, tokens=0)", "return self", "core/test_run_limits.py"),
    ],
    "agent/suspension/seals.py": [
        ("owner of a suspended run", "if suspension.owner != self.owner:", "if False:", "core/test_suspension.py"),
        (
            "suspended run that has expired",
            "suspension.expires_at <= now()",
            "suspension.expires_at > now()",
            "core/test_suspension.py",
        ),
    ],
    "agent/web/chat/links.py": [
        ("shared chat goes on", "head_id=None if choices.later else", "head_id=None if True else", "web/test_links.py"),
        ("number of links", "most=MAX_LINKS", "most=None", "web/test_links.py"),
        ("link of another chat is revoked", "if all(link.digest", "if False and all(link.digest", "web/test_links.py"),
    ],
    "agent/web/chat/permit.py": [
        (
            "reasoning of a model without it",
            "choices.wanted_reasoning if spec.reasoning else None",
            "choices.wanted_reasoning",
            "web/test_remembered_settings.py",
        ),
        (
            "temperature above the highest",
            "min(choices.temperature, max_temperature(spec))",
            "choices.temperature",
            "web/test_remembered_settings.py",
        ),
        ("page asks at a limit", "interactive=False,", "interactive=True,", "web/test_remembered_settings.py"),
    ],
    "agent/web/chat/choices.py": [
        (
            "effort outlives reasoning",
            'checked.reasoning, "effort": None}',
            "checked.reasoning}",
            "web/test_remembered_settings.py",
        )
    ],
    "agent/web/chat/sent_message.py": [
        ("owner of a begun chat", "{owner}\\n{self.value}", "{self.value}", "web/test_sent_twice.py")
    ],
    "agent/web/chat/rate_limit.py": [
        (
            "pictures from links of all visitors",
            "PICTURES_OF_ALL,\n                limits.answers,\n                limits.messages_in_all,",
            "PICTURES_OF_ALL,\n                limits.answers,\n                10**9,",
            "web/test_public.py",
        )
    ],
    "agent/web/ui/page_sessions.py": [
        ("page session of another visitor", "(session.owner == visitor or", "(True or", "web/test_page_sessions.py")
    ],
}
"""What is broken, the code and what replaces it, and tests that should fail, below tests/, by file."""


def run_tests(folder: Path, tests: str, marks: str) -> int:
    """Return the exit status of pytest for these tests: 0 if they pass, 1 if one fails."""
    profile = "quick" if marks == FAST else "gate"
    options = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--hypothesis-profile", profile, "-m", marks]
    command = [sys.executable, "-m", "pytest", *options, *(f"tests/{one}" for one in tests.split())]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    pytest = subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return pytest.wait(SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(pytest.pid, signal.SIGKILL)
        return pytest.wait()


def judge(file: Path, before: str, after: str, run: Callable[[], int], unbroken: int) -> str:
    """Return what the tests say of a break. `unbroken` is the exit status of the tests without it.

    Only a test that fails has found the break. Tests that cannot be collected would find every break.
    """
    if unbroken != 0:
        return f"STALE: its tests have the exit status {unbroken} without the break"
    code = file.read_text(encoding="utf-8")
    if code.count(before) != 1:
        return "STALE: its code has changed"
    file.write_text(code.replace(before, after), encoding="utf-8")
    try:
        status = run()
    finally:
        file.write_text(code, encoding="utf-8")
    return {0: "MISSED", 1: "found"}.get(status, f"STALE: its tests have the exit status {status}")


def main() -> int:
    """Try the breaks and return the number of those that no test finds."""
    marks = GATE if "--gate" in sys.argv else FAST
    words = " ".join(word for word in sys.argv[1:] if word != "--gate")
    missed = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name, "copy")
        kept = shutil.ignore_patterns(".git", ".venv*", "__pycache__", "shots", "data")
        shutil.copytree(ROOT, folder, symlinks=True, ignore=kept)
        run = partial(run_tests, folder, marks=marks)
        unbroken = cache(run)
        rows = [(path, *row) for path, rows in BREAKS.items() for row in rows if words in row[0]]
        for path, what, before, after, tests in rows:
            result = judge(folder / path, before, after, partial(run, tests), unbroken(tests))
            print(f"{what}: {result}", flush=True)
            missed += result != "found"
    return missed


if __name__ == "__main__":
    sys.exit(main())
