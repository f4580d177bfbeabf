"""The Space on the hub, through huggingface_hub: updated as planned, then watched until its page answers."""

import hashlib
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, cast

import httpx2
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, SpaceHardware, Volume, set_client_factory
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.hf_api import RepoFile, SpaceInfo

from agent.deploy.plan import LIST, MOUNT, DeployPlan, PlannedSpace
from agent.errors import AgentError

MARK = "Set by the Spacefile."
"""The description of our variables and secrets. Those with this mark are removed when the Spacefile drops them."""
HUB_FILES = ("README.md", ".gitattributes")
"""Files that the hub itself adds to a new Space."""
STAGE_SECONDS = 30.0
"""Seconds during which the reported stage can still belong to the previous version."""
REQUEST_SECONDS = 60.0
"""Seconds to wait for one answer, and to tolerate failing status requests in a row."""
MAX_LOG_LINES = 20

STAGE_MEANINGS = {
    "BUILD_ERROR": "its build failed",
    "CONFIG_ERROR": "the hub does not accept its configuration",
    "RUNTIME_ERROR": "it was built, and ended when it was started",
    "NO_APP_FILE": "the hub finds no app in it",
    "PAUSED": "it is paused: restart it in its settings",
    "STOPPED": "it is stopped: restart it in its settings",
    "DELETING": "it is being deleted",
}
"""Stages that waiting does not end, each with its meaning."""


class DeployError(AgentError):
    """The hub refused a request, could not be reached, or could not make the Space run."""


@dataclass(frozen=True, slots=True)
class _ExistingSpace:
    """The state of a Space on the hub before any change: blob ids by path, and the files of the previous deploy."""

    info: SpaceInfo
    tree: Mapping[str, str] = field(default_factory=dict[str, str])
    listed: frozenset[str] = frozenset()


class Hub:
    """One hub, accessed with one token. `say` receives each step."""

    def __init__(self, endpoint: str, token: str, say: Callable[[str], None]) -> None:
        # The client of huggingface_hub has no time-out, and its hook logs whole requests if HF_DEBUG is set.
        set_client_factory(lambda: httpx2.Client(follow_redirects=True, timeout=REQUEST_SECONDS))
        self.endpoint = endpoint
        self.token = token
        self.say = say
        self.api = HfApi(endpoint=endpoint, token=token)

    def deploy(self, plan: DeployPlan, secrets: Mapping[str, str], *, wait_seconds: float) -> str:
        """Create or update the Space, wait for its page and return the address. Raises `DeployError`.

        Before any change, checks that it would overwrite only files of an earlier deploy or of a new Space.
        """
        repo = self._repo(plan.space)
        existing = self._find(repo)
        before = existing.info.runtime.stage if existing and existing.info.runtime else "NO_APP_FILE"
        if existing:
            self._refuse_to_overwrite(repo, plan, existing)
        else:
            self._create(repo, plan.space)
        self._set_hardware(repo, plan.space)
        self._set_storage(repo, plan.space)
        self._set_variables(repo, plan.space)
        self._set_secrets(repo, secrets)
        head = self._send(repo, plan, existing or self._read_space(repo))
        return self._watch(repo, head, before, wait_seconds)

    @contextmanager
    def _explain_errors(self, action: str) -> Generator[None]:
        """Turn an exception inside into one sentence that names what was tried."""
        try:
            yield
        except HfHubHTTPError as error:
            status = error.response.status_code
            message = " ".join((error.server_message or error.response.reason_phrase).split())
            advice = {
                401: " Is the token right, and not expired?",
                403: " The token must be allowed to write there, and the name must be yours.",
            }.get(status, "")
            raise DeployError(f"The hub refused to {action} ({status}): {message}.{advice}") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise DeployError(
                f"{self.endpoint} cannot be reached to {action}: {error or type(error).__name__}."
            ) from error
        except (ValueError, KeyError) as error:
            raise DeployError(
                f"{self.endpoint} was asked to {action}, and its answer was not as expected: {error}"
            ) from error

    def _repo(self, space: PlannedSpace) -> str:
        with self._explain_errors("say whose token this is"):
            me = cast(Any, self.api).whoami()
            owner = str(me["name"])
        if me.get("auth", {}).get("accessToken", {}).get("role") == "read":
            raise DeployError("The token may only read: make one that may write, and set HF_TOKEN to it.")
        return space.name if "/" in space.name else f"{owner}/{space.name}"

    def _find(self, repo: str) -> _ExistingSpace | None:
        try:
            return self._read_space(repo)
        except DeployError as error:
            if isinstance(error.__cause__, RepositoryNotFoundError):
                return None
            raise

    def _read_space(self, repo: str) -> _ExistingSpace:
        with self._explain_errors(f"show the Space {repo}"), TemporaryDirectory() as folder:
            info = self.api.space_info(repo)
            nodes = self.api.list_repo_tree(repo, repo_type="space", recursive=True)
            tree = {node.path: node.blob_id for node in nodes if isinstance(node, RepoFile)}
            if LIST not in tree:
                return _ExistingSpace(info, tree)
            names = Path(
                cast(Any, self.api).hf_hub_download(repo, LIST, repo_type="space", local_dir=folder)
            ).read_text()
            return _ExistingSpace(info, tree, frozenset(names.splitlines()) | {LIST})

    def _refuse_to_overwrite(self, repo: str, plan: DeployPlan, existing: _ExistingSpace) -> None:
        foreign = [
            path
            for path, data in plan.files.items()
            if path in existing.tree and path not in existing.listed and path not in HUB_FILES
            if existing.tree[path] != _blob_id(data)
        ]
        if foreign:
            raise DeployError(
                f"The Space {repo} has files that no deploy sent: {', '.join(foreign[:5])}. "
                "Choose another name in the Spacefile, or delete them there. Nothing was changed."
            )

    def _create(self, repo: str, space: PlannedSpace) -> None:
        # Secrets are sent later, to their own endpoint, so that no other request contains one.
        with self._explain_errors(f"create the Space {repo}"):
            self.api.create_repo(
                repo,
                repo_type="space",
                space_sdk=space.sdk,
                private=space.private,
                space_hardware=SpaceHardware(space.hardware),
                space_sleep_time=space.sleep_seconds,
            )
        self.say(f"Created the Space {repo} ({'private' if space.private else 'public'}).")

    def _set_hardware(self, repo: str, space: PlannedSpace) -> None:
        with self._explain_errors(f"give {repo} the hardware {space.hardware}"):
            runtime = self.api.get_space_runtime(repo)
            if (runtime.requested_hardware or runtime.hardware) != space.hardware:
                hardware = SpaceHardware(space.hardware)
                self.api.request_space_hardware(repo, hardware, sleep_time=space.sleep_seconds)
                self.say(f"Asked for the hardware {space.hardware}.")
            elif space.sleep_seconds is not None and runtime.sleep_time != space.sleep_seconds:
                self.api.set_space_sleep_time(repo, space.sleep_seconds)
                self.say(f"Set the sleep time to {space.sleep_seconds} s.")

    def _set_storage(self, repo: str, space: PlannedSpace) -> None:
        if not space.storage:
            return
        bucket = space.storage if "/" in space.storage else f"{repo.split('/')[0]}/{space.storage}"
        with self._explain_errors(f"mount the bucket {bucket}"):
            volumes = self.api.get_space_runtime(repo).volumes or []
            if any(one.source == bucket and one.mount_path == MOUNT for one in volumes):
                return
            self.api.create_bucket(bucket, private=True, exist_ok=True)
            others = [one for one in volumes if one.mount_path != MOUNT]
            self.api.set_space_volumes(repo, [*others, Volume(type="bucket", source=bucket, mount_path=MOUNT)])
        self.say(f"Mounted the bucket {bucket} at {MOUNT}.")

    def _set_variables(self, repo: str, space: PlannedSpace) -> None:
        with self._explain_errors(f"set the variables of {repo}"):
            current = self.api.get_space_variables(repo)
            for name in [
                name for name, one in current.items() if one.description == MARK and name not in space.variables
            ]:
                self.api.delete_space_variable(repo, name)
                self.say(f"Removed the variable {name}.")
            for name, value in space.variables.items():
                if name not in current or current[name].value != value:
                    self.api.add_space_variable(repo, name, value, description=MARK)
                    self.say(f"Set the variable {name}.")

    def _set_secrets(self, repo: str, secrets: Mapping[str, str]) -> None:
        """Set all secrets every time: the hub does not return them, so a difference cannot be seen."""
        with self._explain_errors(f"set the secrets of {repo}"):
            current = self.api.get_space_secrets(repo)
            for name in [name for name, one in current.items() if one.description == MARK and name not in secrets]:
                self.api.delete_space_secret(repo, name)
                self.say(f"Removed the secret {name}.")
            for name, value in secrets.items():
                self.api.add_space_secret(repo, name, value, description=MARK)
                self.say(f"Set the secret {name}.")

    def _send(self, repo: str, plan: DeployPlan, existing: _ExistingSpace) -> str:
        """Send changed files and remove dropped ones in one commit. Return the id of the newest commit."""
        changed = {path: data for path, data in plan.files.items() if existing.tree.get(path) != _blob_id(data)}
        gone = sorted((existing.listed & existing.tree.keys()) - plan.files.keys())
        if not changed and not gone:
            self.say("The files are the same as there: nothing to send.")
            return existing.info.sha or ""
        operations = [
            *(CommitOperationAdd(path, data) for path, data in changed.items()),
            *(CommitOperationDelete(path) for path in gone),
        ]
        with self._explain_errors(f"take the files of {repo}"):
            commit = self.api.create_commit(
                repo, operations, commit_message="Deploy", repo_type="space", parent_commit=existing.info.sha
            )
        self.say(f"Sent {len(changed)} files, removed {len(gone)}.")
        return commit.oid

    def _watch(self, repo: str, head: str, before: str, wait_seconds: float) -> str:
        """Poll until the page answers. Return its address."""
        start = last_answer = time.monotonic()
        pause, last = 0.25, ""
        while True:
            now = time.monotonic()
            try:
                with self._explain_errors(f"say how {repo} is"):
                    runtime = self.api.get_space_runtime(repo)
                    last_answer = now
            except DeployError:
                # The network can fail for a moment within half an hour.
                if now - last_answer > min(REQUEST_SECONDS, wait_seconds):
                    raise
                time.sleep(pause)
                continue
            raw = cast(Any, runtime).raw
            running, stage = raw.get("sha"), str(raw["stage"])
            if stage != last:
                self.say(f"{repo}: {stage}")
            fresh = stage != before or last not in ("", before) or now - start > STAGE_SECONDS
            if stage in STAGE_MEANINGS and fresh:
                self._fail(repo, stage, str(raw.get("errorMessage") or ""))
            why = f"it is {stage}"
            if (stage == "RUNNING" and (running == head or (fresh and not running))) or stage == "SLEEPING":
                # A request for the page wakes a sleeping Space.
                url, why = self._ask_page(repo)
                if not why and stage == "RUNNING":
                    self.say(f"The page answers: {url}")
                    return url
            if now - start > wait_seconds:
                self._say_log(repo, build="BUILDING" in stage)
                raise DeployError(f"The page of {repo} does not answer after {wait_seconds:.0f} s: {why}.")
            last = stage
            time.sleep(min(pause, wait_seconds))
            pause = min(pause * 1.3, 5.0)

    def _ask_page(self, repo: str) -> tuple[str, str]:
        """Return the page's address, and the reason if it does not answer, else ""."""
        with self._explain_errors(f"say where the page of {repo} is"):
            info = self.api.space_info(repo)
        if not info.host:
            return "", "the hub names no address"
        headers = {"Authorization": f"Bearer {self.token}"} if info.private else {}
        try:
            status = httpx2.get(info.host, headers=headers, timeout=20, follow_redirects=True).status_code
        except httpx2.HTTPError as error:
            return info.host, f"it runs, but {info.host} gives no answer ({type(error).__name__})"
        return info.host, "" if status < 400 else f"it runs, but {info.host} answers {status}"

    def _fail(self, repo: str, stage: str, message: str) -> None:
        self._say_log(repo, build=stage == "BUILD_ERROR")
        detail = f" The hub says: {message}" if message else ""
        raise DeployError(f"The Space {repo} does not run ({stage}): {STAGE_MEANINGS[stage]}.{detail}")

    def _say_log(self, repo: str, *, build: bool, seconds: float = 20.0) -> None:
        """Report the end of the log. Ignore failures, because the caller reports another fault."""
        pieces: list[str] = []

        def fetch() -> None:
            try:
                for piece in self.api.fetch_space_logs(repo, build=build):
                    pieces.append(piece)
            except (httpx2.HTTPError, OSError, ValueError, KeyError):
                pieces.append("(the log cannot be read)")

        # The hub can keep the stream of a log open for ever.
        thread = Thread(target=fetch, daemon=True)
        thread.start()
        thread.join(seconds)
        self.say(f"The end of the {'build' if build else 'run'} log of {repo}:")
        for line in "".join(pieces).splitlines()[-MAX_LOG_LINES:] or ["(nothing)"]:
            self.say(f"  {line}")


def _blob_id(data: bytes) -> str:
    """Return Git's blob id of the content, which the hub lists."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
