"""Chooses the model that answers on this machine, in a fixed order, and owns the servers started for it."""

import asyncio
import secrets
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from agent.errors import AgentError, LocalModelError, ProviderError, combine_errors, reason_of
from agent.i18n.text import _, joined
from agent.local import zero_gpu
from agent.local.launch import Candidate, Launched, check_llama, gpu_memory, launch_llama, launch_vllm
from agent.local.process import ServerProcess
from agent.local.vllm_server import default_model, find_vllm
from agent.models.catalog import ModelSpec, load_catalog
from agent.models.weights import BETTER, SMOLLM2, Status, Weights, fetch, find
from agent.providers.connection import Endpoint, ServedModel, default_endpoint
from agent.providers.discovery import discover
from agent.settings import ROOT, LocalSettings


def crashed(model: str, times: int) -> LocalModelError:
    """Return the error for a server that crashes again and again."""
    return LocalModelError(_("{model} crashed {count} times and is given up.", model=model, count=times))


def not_started(error: Exception) -> LocalModelError:
    """Return the error for a start that failed for an unknown reason."""
    name = type(error).__name__
    return LocalModelError(_("The local model could not be started ({error}).", error=f"{name}: {reason_of(error)}"))


class ProgressBar:
    """Progress in bytes: one rewritten line if `say` is `print` on a terminal, else a line for every tenth."""

    def __init__(self, label: str, say: Callable[[str], None]) -> None:
        self._label, self._say = label, say
        self._rewrites = say is print and sys.stdout.isatty()
        self._tenth, self._shown = 0, 0.0

    def __call__(self, have: int, total: int) -> None:
        """Show that `have` of `total` bytes have arrived."""
        done = min(1.0, have / total) if total else 0.0
        amount = f"{have // 10**6} of {total // 10**6} MB"
        if self._rewrites and time.monotonic() - self._shown > 0.1:
            self._shown = time.monotonic()
            print(f"\r  [{'#' * round(done * 30):30}] {done:4.0%}  {amount} ", end="", flush=True)
        elif not self._rewrites and int(done * 10) > self._tenth:
            self._tenth = int(done * 10)
            self._say(f"  {self._label}: {self._tenth * 10} %, {amount}")

    def close(self) -> None:
        """Clear the line."""
        if self._shown:
            print("\r" + " " * 70, end="\r", flush=True)


_RETRY_SECONDS = 2.0  # between two requests to a named server that does not answer
_RECHECK_SECONDS = 30.0  # if it does answer: it may have been restarted with another model
_USUAL = ("ollama", "lmstudio")  # servers that people run on their own machine
_MAX_RESTARTS = 3  # a server that crashes more often within `_RESTART_WINDOW_SECONDS` stays down
_RESTART_WINDOW_SECONDS = 300.0
_NO_BETTER = (
    "Using the bundled SmolLM2-135M (tiny, may be wrong). Connect once to fetch a better model, "
    "or set VLLM_BASE_URL or LOCAL_MODEL."
)


class LocalModels:
    """Serves the best model that this machine can run, and owns every process started for that.

    The order of choice: a server that the user names, the model of a ZeroGPU Space, our own vLLM, a file that the user
    names, a better model from the cache or a download, and SmolLM2 until a better model answers or if there is none.
    After these come the models of an Ollama and an LM Studio that answer at their usual ports, and of the servers in
    the owner's table. `say` gets one line about each step. `better` lists the models that can be downloaded, best
    first. Use it from one event loop.
    """

    def __init__(
        self, settings: LocalSettings, *, say: Callable[[str], None] = print, better: Sequence[Weights] = BETTER
    ) -> None:
        self._settings = settings
        self._say = say
        self._better = better
        self._ranks: dict[int, tuple[ServedModel, ...]] = {}
        self._discovered: dict[str, tuple[ServedModel, ...]] = {}  # by provider
        self._watched = (*_USUAL, *load_catalog().unlisted) if settings.finds_servers else ()
        self._latest_status = Status("starting", _("Looking for a model."))
        self._better_status: Status | None = None  # the latest status of the better model, until it answers
        self._changed = asyncio.Event()
        self._fallback_lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._restart_tasks: set[asyncio.Task[None]] = set()
        self._children: set[ServerProcess] = set()
        self._closed = False

    def start(self) -> None:
        """Start in a background task of the running loop and return at once. A second call does nothing."""
        if self._task is None and not self._closed:
            self._task = asyncio.create_task(self._run())
            self._restart_tasks |= {asyncio.create_task(self._watch(id_)) for id_ in self._watched}

    @property
    def served(self) -> tuple[ServedModel, ...]:
        """The models that answer now, the default first."""
        return self._chosen + tuple(each for found in self._discovered.values() for each in found)

    @property
    def _chosen(self) -> tuple[ServedModel, ...]:
        """The models of the server that was named or started."""
        return tuple(each for rank in sorted(self._ranks) for each in self._ranks[rank])

    @property
    def status(self) -> Status:
        """The current status."""
        if not self.served:
            return self._latest_status
        answers = Status("ready", _("{model} answers.", model=self.served[0].spec.label), 1.0)
        if better := self._better_status:
            return Status("ready", joined([answers.text, better.text]), better.done)
        return answers

    async def ready(self) -> tuple[ServedModel, ...]:
        """Wait until a model answers, and start one if needed. Raises `LocalModelError` with the reason if none can.

        It also raises if a named server does not answer. The search for that server goes on: call again later.
        """
        self.start()
        while not self._chosen:
            if self._latest_status.phase == "failed":
                if self.served:
                    break
                if not self._closed and len(self._discovered) < len(self._watched):
                    await asyncio.sleep(0.05)  # they have not been asked yet
                    continue
                raise LocalModelError(self._latest_status.text)
            await self._changed.wait()
        return self.served

    async def aclose(self) -> None:
        """End every process and wait for the end. Idempotent."""
        self._closed = True
        tasks = [task for task in (self._task, *self._restart_tasks) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(child.aclose() for child in self._children))
        self._children.clear()
        self._ranks.clear()
        self._discovered.clear()
        self._report_failure(LocalModelError(_("The local model was shut down.")), rank=0)

    def end(self) -> None:
        """End every process from any thread, also if the event loop has ended. Does not wait for the end."""
        self._closed = True
        for task in (self._task, *self._restart_tasks):
            if task is not None and not (loop := task.get_loop()).is_closed():
                loop.call_soon_threadsafe(task.cancel)
        for child in self._children:
            child.end()

    async def _run(self) -> None:
        try:
            if url := self._settings.vllm_base_url:
                await self._watch_named_server(Endpoint(url, self._settings.vllm_api_key))
            else:
                await self._start_best_or_fallback()
        except LocalModelError as error:
            self._fail(error)
        except Exception as error:
            self._fail(not_started(error))
            raise

    async def _watch_named_server(self, endpoint: Endpoint) -> None:
        """Offer the models of a named server, also if it comes up later or restarts with another model."""
        while True:
            try:
                specs = await discover(endpoint)
            except ProviderError as error:
                if not self._chosen:
                    self._fail(
                        error, LocalModelError(_("Trying again every {seconds:.0f} seconds.", seconds=_RETRY_SECONDS))
                    )
            else:
                served = tuple(ServedModel(spec, endpoint) for spec in specs)
                if self._chosen != served:
                    self._say(f"Using the server named by VLLM_BASE_URL: {', '.join(spec.name for spec in specs)}.")
                    self._set_served(0, served)
            await asyncio.sleep(_RECHECK_SECONDS if self._chosen else _RETRY_SECONDS)

    async def _watch(self, id_: str) -> None:
        """Offer the models of this provider's server while it answers. Say why one of the owner's table does not."""
        endpoint, said = default_endpoint(load_catalog().providers[id_]), ""
        if endpoint.base_url == self._settings.vllm_base_url:
            self._discovered[id_] = ()
        while endpoint.base_url != self._settings.vllm_base_url:
            specs, problem = (), ""
            try:
                specs = await discover(endpoint, provider=id_)
            except ProviderError as error:
                problem = str(error)
            finally:  # `ready` waits for it
                self._discovered[id_] = tuple(ServedModel(spec, endpoint) for spec in specs)
            if problem != said and id_ not in _USUAL:
                self._say(problem or f"{id_} answers: {', '.join(spec.name for spec in specs)}.")
            said = problem
            await asyncio.sleep(_RECHECK_SECONDS)

    async def _start_best_or_fallback(self) -> None:
        """Start the best model there is. If that takes long or fails, start SmolLM2."""
        named = self._settings.local_model is not None
        best = asyncio.create_task(self._start_best())
        try:
            await asyncio.wait({best}, timeout=None if named else self._settings.wait_seconds)
            if not best.done():
                self._say(f"This takes longer than {self._settings.wait_seconds:.0f} s: SmolLM2 answers meanwhile.")
                try:
                    await self._start_fallback()
                except LocalModelError as error:
                    self._say(str(error))
            await best
        except LocalModelError as error:
            if named:  # never replace a file that was asked for without an error
                raise
            check_llama()  # SmolLM2 needs it, too
            self._say(f"{error} {_NO_BETTER}")
            self._report(Status("starting", _("Loading {model}.", model="SmolLM2")), rank=1)
            if not self._chosen:
                await self._start_fallback()
            self._report_failure(error, rank=0)
        finally:
            best.cancel()
            await asyncio.gather(best, return_exceptions=True)

    async def _start_best(self) -> None:
        """Start something better than SmolLM2. Raises `LocalModelError` if there is nothing."""
        if served := zero_gpu.served():
            self._set_served(0, served)
            return
        if await self._start_vllm():
            return
        check_llama()
        if path := self._settings.local_model:
            await self._start_named_file(path)
            return
        for weights in self._better:
            if path := await find(weights, self._settings.cache_dir):
                self._say(f"{weights.spec.label} is on this disk.")
                await self._start_llama(0, weights, path)
                return
        if not self._settings.downloads:
            raise LocalModelError(_("Downloads are off and no better model is on this disk."))
        for weights in self._better:
            try:
                path = await self._fetch(weights, rank=0)
            except LocalModelError as error:
                self._say(str(error))
                continue
            await self._start_llama(0, weights, path)
            return
        raise LocalModelError(_("No better model could be fetched."))

    async def _start_fallback(self) -> None:
        """Start SmolLM2 unless it answers already."""
        async with self._fallback_lock:
            if self._ranks.get(1):
                return
            check_llama()
            path = await find(SMOLLM2, self._settings.cache_dir)
            if path is None and not self._settings.downloads:
                raise LocalModelError(
                    _(
                        "There is no model on this disk and downloads are off. Run `make setup`, or set "
                        "LOCAL_MODEL or VLLM_BASE_URL."
                    )
                )
            await self._start_llama(1, SMOLLM2, path or await self._fetch(SMOLLM2, rank=1))

    async def _fetch(self, weights: Weights, *, rank: int) -> Path:
        label = weights.spec.label
        self._say(f"Fetching {label}: {weights.size // 10**6} MB, {weights.spec.source}.")
        bar, began = ProgressBar(label, self._say), time.monotonic()

        def report(have: int, total: int) -> None:
            done = have / total if total else 0.0
            bar(have, total)
            saying = _("Fetching {model}: {have} of {total} MB.", model=label, have=have // 10**6, total=total // 10**6)
            self._report(Status("fetching", saying, min(done, 1.0)), rank=rank)

        try:
            path = await fetch(weights, self._settings.cache_dir, report=report)
        finally:
            bar.close()
        self._say(f"Fetched {label} in {time.monotonic() - began:.0f} s; its sha256 is the pinned one.")
        return path

    async def _start_vllm(self) -> bool:
        """Start vLLM if it is installed and there is a GPU or the user asks for it. Return False if none is started."""
        named, program = self._settings.vllm_model, find_vllm(ROOT)
        memory = await gpu_memory()
        if program is None:
            if named or memory:
                cause = f"MODEL={named!r} asks for vLLM" if named else "There is a GPU"
                self._say(f"{cause}, but vLLM is not installed: looking further.")
            return False
        if not (named or memory):
            return False
        model = named or default_model(memory)
        self._say(f"Starting vLLM with {model} on {f'a GPU of {memory // 1024} GiB' if memory else 'the CPU'}.")

        def report(step: str, done: float) -> None:
            if not self._ranks.get(0):  # its log has more steps after the start
                saying = _("vLLM, {model}: {step}.", model=model, step=step)
                self._report(Status("loading", saying, done), rank=0)

        async def launch(key: str, port: int) -> Launched:
            return await launch_vllm(program, model, gpu_memory=memory, key=key, port=port, report=report)

        try:
            await self._start_candidate(
                Candidate(0, f"vLLM with {model}", secrets.token_urlsafe(32), launch, lambda spec: spec)
            )
        except LocalModelError as error:
            self._say(f"vLLM could not serve {model}: {error}")
            return False
        return True

    async def _start_named_file(self, path: Path) -> None:
        if not await asyncio.to_thread(path.is_file):
            raise LocalModelError(_("LOCAL_MODEL names {path!r}, and there is no such file.", path=str(path)))

        async def launch(key: str, port: int) -> Launched:
            answers = self._settings.answers
            return await launch_llama(
                path, name=path.stem, context=4096, kv_bytes=None, key=key, port=port, answers=answers
            )

        def describe(spec: ModelSpec) -> ModelSpec:
            return replace(spec, id=f"local:{path.stem}", label=path.stem, source=_("a file on this machine"))

        await self._start_candidate(Candidate(0, path.stem, secrets.token_urlsafe(32), launch, describe))

    async def _start_llama(self, rank: int, weights: Weights, path: Path) -> None:
        spec = weights.spec

        async def launch(key: str, port: int) -> Launched:
            context, kv_bytes, answers = spec.context_tokens, weights.kv_bytes, self._settings.answers
            return await launch_llama(
                path, name=spec.name, context=context, kv_bytes=kv_bytes, key=key, port=port, answers=answers
            )

        await self._start_candidate(Candidate(rank, spec.label, secrets.token_urlsafe(32), launch, lambda _: spec))

    async def _start_candidate(self, candidate: Candidate) -> None:
        """Launch the server and restart it after crashes. Raises `LocalModelError` if the first launch fails."""
        child, port = await self._launch(candidate, 0)
        task = asyncio.create_task(self._restart_after_crash(candidate, child, port))
        self._restart_tasks.add(task)
        task.add_done_callback(self._restart_tasks.discard)

    async def _launch(self, candidate: Candidate, port: int) -> tuple[ServerProcess, int]:
        self._report(Status("loading", _("Loading {model}.", model=candidate.label)), rank=candidate.rank)
        began = time.monotonic()
        child, endpoint, specs = await candidate.launch(candidate.key, port)
        self._children.add(child)
        self._say(f"{candidate.label} answers after {time.monotonic() - began:.1f} s.")
        self._set_served(candidate.rank, tuple(ServedModel(candidate.describe(spec), endpoint) for spec in specs))
        return child, int(endpoint.base_url.rsplit(":", 1)[-1].split("/")[0])

    async def _restart_after_crash(self, candidate: Candidate, child: ServerProcess, port: int) -> None:
        """Restart a crashed server on its old port, a limited number of times."""
        crashes: deque[float] = deque(maxlen=_MAX_RESTARTS + 1)
        try:
            while True:
                why = await child.wait()
                await child.aclose()  # processes that outlive it still write to its log, which reports the progress
                self._children.discard(child)
                self._ranks.pop(candidate.rank, None)
                crashes.append(time.monotonic())
                if len(crashes) > _MAX_RESTARTS and crashes[-1] - crashes[0] < _RESTART_WINDOW_SECONDS:
                    raise combine_errors(LocalModelError, crashed(candidate.label, len(crashes)), why)
                self._say(f"{candidate.label}: {why} Starting it again.")
                child, port = await self._launch(candidate, port)
        except LocalModelError as error:
            await self._give_up_server(candidate, error)
        except Exception as error:
            await self._give_up_server(candidate, not_started(error))
            raise

    async def _give_up_server(self, candidate: Candidate, error: LocalModelError) -> None:
        """Report why the server is lost. If no other server answers, start SmolLM2 instead of the better model."""
        self._say(str(error))
        if not self._chosen and candidate.rank == 0 and self._settings.local_model is None:
            try:
                await self._start_fallback()
            except LocalModelError as other:
                self._fail(error, other)
                return
        if self._chosen:  # the failure also replaces the status of a restart that did not succeed
            self._report_failure(error, rank=candidate.rank)
        else:
            self._fail(error)

    def _set_served(self, rank: int, served: tuple[ServedModel, ...]) -> None:
        self._ranks[rank] = served
        self._report(Status("ready", _("{model} answers.", model=served[0].spec.label), 1.0), rank=rank)

    def _fail(self, *errors: AgentError) -> None:
        error = combine_errors(LocalModelError, *errors)
        if self._latest_status.text != str(error):
            self._say(str(error))
        self._report_failure(error, rank=0)

    def _report_failure(self, error: AgentError, *, rank: int) -> None:
        self._report(Status("failed", error.text, None), rank=rank)

    def _report(self, status: Status, *, rank: int) -> None:
        self._latest_status = status
        if rank == 0:
            self._better_status = None if status.phase == "ready" else status
        self._changed.set()
        self._changed = asyncio.Event()
