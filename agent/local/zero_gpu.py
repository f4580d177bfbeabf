"""A Qwen3 in this process, on the GPU that a ZeroGPU Space borrows from the hub for each answer.

The clients of this process reach it with the Chat Completions API (see `providers.http.serve_in_process`), so it has
the same messages, reasoning, queue and errors as a server. The hub runs `_generate` in a process that has the GPU:
what goes in and comes out are lists of tokens. Off ZeroGPU it runs here, on the CPU.
"""

import asyncio
import json
import logging
import re
import secrets
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock, Thread
from time import time
from types import SimpleNamespace
from typing import Any

import httpx2

from agent.errors import ProviderError
from agent.i18n.text import N_, LocalizedText, _
from agent.models.catalog import ModelSpec, load_catalog
from agent.providers.connection import Endpoint, ServedModel
from agent.providers.http import serve_in_process
from agent.providers.think_tags import CLOSE, OPEN, begins_tag, without_begun

log = logging.getLogger(__name__)

DEFAULT_MODEL = "Qwen/Qwen3-4B"
URL = "http://127.0.0.1/zero-gpu/v1"
"""The address that stands for this process. Nothing listens there."""
CONTEXT_TOKENS = 32_768
MOST_SECONDS = 60
"""The most seconds to ask the hub for. They count against the visitor's quota, and fewer are lent sooner."""
TOKENS_PER_SECOND = 25
CALL, END_OF_CALL = "<tool_call>", "</tool_call>"
MAX_QUOTED_CHARACTERS = 300

QUOTA = N_('Your time on the GPU of this Space is used up for now. The hub says: "{text}".')
FAILED = N_("{who} failed in the middle of the answer.")
NO_GPU = N_('The GPU of this Space cannot be used at the moment. The hub says: "{text}".')

visitor_token: ContextVar[str | None] = ContextVar("visitor_token", default=None)
"""The token in which the hub names the visitor to a ZeroGPU Space (`X-IP-Token`). Their quota pays for the answer."""

_one_at_a_time = Lock()
_tokenizing = ThreadPoolExecutor(1)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The model and its tokenizer, and the function that writes tokens, which the hub may run in another process.

    `request` is where `spaces` looks for the request of the visitor.
    """

    spec: ModelSpec
    tokenizer: Any
    model: Any
    generate: Callable[[list[int], Mapping[str, Any]], Generator[int]]
    request: ContextVar[Any] | None = None


_loaded: _Loaded | None = None


def served() -> tuple[ServedModel, ...]:
    """Return the model that `load` has loaded, if there is one. It writes one answer at a time."""
    return (ServedModel(_loaded.spec, Endpoint(URL, slots=1)),) if _loaded else ()


def load(name: str | None, say: Callable[[str], None], *, on_zero_gpu: bool = True) -> None:
    """Load a Qwen3 from the hub or a folder, if PyTorch and Transformers are installed, and report to the hub.

    Call it before the server listens, because the hub then looks for the report, and before this process's memory is
    private. `say` gets one line about what happens. A failure leaves the other models.
    """
    global _loaded
    name = name or DEFAULT_MODEL
    try:
        try:
            generate, request = _generate, None
            if on_zero_gpu:  # Gradio is imported before `spaces`, and PyTorch after it
                generate = import_module("spaces").GPU(duration=seconds_for)(_generate)
                request = import_module("spaces.utils").gradio_request_var()
            if find_spec("torch") and find_spec("transformers"):
                say(f"Loading {name} for the GPU of this Space.")
                _loaded = replace(_load(name, "cuda" if on_zero_gpu else "cpu"), generate=generate, request=request)
                serve_in_process(URL, _Transport())
            else:
                say("No model for the GPU of this Space: the Spacefile's requirements have no torch and transformers.")
        finally:
            if on_zero_gpu and "spaces.zero" in sys.modules:
                # What `Blocks.launch` does, which this app does not call: hand the weights over, name the function.
                sys.modules["spaces.zero"].startup()
    except Exception as error:
        _loaded = None
        log.warning("%s could not be loaded", name, exc_info=True)
        say(f"{name} could not be loaded ({type(error).__name__}), so other models answer.")


def seconds_for(prompt: list[int], options: Mapping[str, Any]) -> int:
    """Return the seconds of GPU to ask the hub for."""
    return min(_seconds_before(prompt) + options["max_new_tokens"] // TOKENS_PER_SECOND, MOST_SECONDS)


def most_tokens(prompt: list[int]) -> int:
    """Return the most tokens of an answer: as many as the model writes in `MOST_SECONDS`."""
    return (MOST_SECONDS - _seconds_before(prompt)) * TOKENS_PER_SECOND


def _seconds_before(prompt: list[int]) -> int:
    """Return the seconds until the first token."""
    return 15 + len(prompt) // 2000


def _load(name: str, device: str) -> _Loaded:
    transformers: Any = import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    model = transformers.AutoModelForCausalLM.from_pretrained(name, dtype="auto", use_safetensors=True)
    context = min(CONTEXT_TOKENS, model.config.max_position_embeddings)
    spec = replace(
        load_catalog().find(Path(name).name if Path(name).is_dir() else name, "vllm"),
        image=False,
        audio=False,
        prefill=True,
        context_tokens=context,
        max_output_tokens=min(most_tokens([]), context // 2),
        source=_("the GPU of this Space"),
    )
    return _Loaded(spec, tokenizer, model.to(device).eval(), _generate)


def _generate(prompt: list[int], options: Mapping[str, Any]) -> Generator[int]:
    """Yield the tokens of an answer as they come. Closing this generator stops the model."""
    assert _loaded is not None
    torch: Any = import_module("torch")
    tokens: SimpleQueue[list[int] | Exception | None] = SimpleQueue()
    stopped, model = Event(), _loaded.model

    def write() -> None:
        try:
            ids = torch.tensor([prompt], device=model.device)
            model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                streamer=_Streamer(tokens),
                stopping_criteria=[lambda *_, **__: stopped.is_set()],  # pyright: ignore[reportUnknownLambdaType]
                max_time=seconds_for(prompt, options) - 5.0,
                **options,
            )
            tokens.put(None)
        except Exception as error:
            tokens.put(error)

    thread = Thread(target=write)
    thread.start()
    try:
        while (some := tokens.get()) is not None:
            if isinstance(some, Exception):
                raise some
            yield from some
    finally:
        stopped.set()
        thread.join()


class _Streamer:
    """A receiver for the tokens that Transformers generates. It leaves out the prompt, which comes first."""

    def __init__(self, tokens: SimpleQueue[Any]) -> None:
        self._tokens, self._has_prompt = tokens, False

    def put(self, value: Any) -> None:
        if self._has_prompt:
            self._tokens.put(value.flatten().tolist())
        self._has_prompt = True

    def end(self) -> None:
        """Do nothing: the end of `generate` is the end."""


class _Transport(httpx2.AsyncBaseTransport):
    """Answers the requests that the clients of this process send to `URL`."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        assert _loaded is not None
        body = json.loads(await request.aread())
        if body.get("response_format"):
            return _refusal(request, "response_format is not supported")
        prompt = await asyncio.get_running_loop().run_in_executor(_tokenizing, _prompt, _loaded.tokenizer, body)
        room = _loaded.spec.context_tokens - len(prompt)
        if room < 1:
            return _refusal(
                request,
                f"maximum context length is {_loaded.spec.context_tokens} tokens, "
                f"and the request has {len(prompt)} input tokens",
            )
        most = min(room, _loaded.spec.max_output_tokens, most_tokens(prompt))
        events = _events(_loaded, prompt, _options(body, most), body)
        first = await anext(events)  # so that a failure is one of the request
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, stream=_LoanStream(first, events), request=request)


class _LoanStream(httpx2.AsyncByteStream):
    def __init__(self, first: bytes, rest: AsyncGenerator[bytes]) -> None:
        self._first, self._rest = first, rest

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._first
        async for event in self._rest:
            yield event

    async def aclose(self) -> None:
        await self._rest.aclose()


def _refusal(request: httpx2.Request, message: str) -> httpx2.Response:
    return httpx2.Response(400, json={"error": {"message": message}}, request=request)


def _prompt(tokenizer: Any, body: Mapping[str, Any]) -> list[int]:
    """Return the tokens of a conversation in the model's own chat template."""
    text: str = tokenizer.apply_chat_template(
        [_message(message) for message in body["messages"]],
        tools=body.get("tools") if body.get("tool_choice") != "none" else None,
        tokenize=False,
        add_generation_prompt=body.get("add_generation_prompt", True),
        continue_final_message=body.get("continue_final_message", False),
        **body.get("chat_template_kwargs", {}),
    )
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as chat templates expect it: with one text, and with reasoning in its usual field."""
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "\n\n".join(part["text"] for part in content if part["type"] == "text")
    thought = message.get("reasoning_content") or message.get("reasoning")
    return {**message, "content": content, **({"reasoning_content": thought} if thought else {})}


def _options(body: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Return the arguments of `generate`. What is not given is the model's own default."""
    wanted = body.get("max_completion_tokens") or body.get("max_tokens") or most
    options: dict[str, Any] = {"max_new_tokens": min(wanted, most)}
    if (temperature := body.get("temperature")) is None:
        return options
    if temperature == 0:
        return {**options, "do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    return {**options, "do_sample": True, "temperature": float(temperature)}


async def _events(
    loaded: _Loaded, prompt: list[int], options: Mapping[str, Any], body: Mapping[str, Any]
) -> AsyncGenerator[bytes]:
    """Yield the server-sent events of an answer. Raises `ProviderError` if there is no GPU for it."""
    decode = import_module("tokenizers.decoders").DecodeStream(skip_special_tokens=True).step
    about = {"id": f"chatcmpl-{secrets.token_hex(8)}", "object": "chat.completion.chunk", "created": int(time())}
    about["model"] = loaded.spec.name
    count, last, calls = 0, -1, _ToolCalls()

    def event(delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return _event({**about, "choices": [choice]})

    async with aclosing(_in_thread(lambda: loaded.generate(prompt, options), loaded.request)) as tokens:
        async for last in tokens:
            count += 1
            for delta in calls.feed(decode(loaded.tokenizer.backend_tokenizer, last) or ""):
                yield event(delta)
    is_whole = last in _ends(loaded.model)
    for delta in calls.end(is_whole=is_whole):
        yield event(delta)
    yield event({}, "length" if not is_whole else "tool_calls" if calls.count else "stop")
    usage = {"prompt_tokens": len(prompt), "completion_tokens": count, "total_tokens": len(prompt) + count}
    yield _event({**about, "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def _ends(model: Any) -> list[int]:
    """Return the tokens that end an answer."""
    found: int | list[int] = model.generation_config.eos_token_id
    return [found] if isinstance(found, int) else found


async def _in_thread(generate: Callable[[], Generator[int]], request: ContextVar[Any] | None) -> AsyncGenerator[int]:
    """Run a generator in a thread, behind the one before it. Closing this one closes it with its next token.

    `request` gets a request of the visitor.
    """
    loop, stopped = asyncio.get_running_loop(), Event()
    tokens: asyncio.Queue[int | ProviderError | None] = asyncio.Queue()

    def put(item: int | ProviderError | None) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tokens.put_nowait, item)

    def work() -> None:
        if request is not None and (token := visitor_token.get()):
            headers = {"x-ip-token": token, "x-gradio-user": "app"}
            request.set(SimpleNamespace(headers=SimpleNamespace(get=headers.get)))
        try:
            with _one_at_a_time:
                if stopped.is_set():
                    return
                with closing(generate()) as source:
                    for token in source:
                        if stopped.is_set():
                            return
                        put(token)
            put(None)
        except Exception as error:
            put(_explained(error))

    Thread(target=copy_context().run, args=(work,), daemon=True).start()
    try:
        while (item := await tokens.get()) is not None:
            if isinstance(item, ProviderError):
                raise item
            yield item
    finally:
        stopped.set()


def _explained(error: Exception) -> ProviderError:
    """Return the failure as a sentence. What the hub says is for the visitor: `spaces` raises it as an error of Gradio.

    It tells how much of the quota is left, and when there is more.
    """
    title = getattr(error, "title", None)
    if title is None:
        log.warning("the model in this process failed", exc_info=error)
        return ProviderError(LocalizedText(FAILED, {"who": _("The model server")}), kind="server")
    log.warning("ZeroGPU: %s", title)
    words = re.sub(r"\[([^\[\]]{1,100})\]\(([^()\s]{1,300})\)", r"\1 (\2)", str(getattr(error, "message", "")))[
        :MAX_QUOTED_CHARACTERS
    ]
    is_quota = "quota" in title or "credits" in title
    sentence = QUOTA if is_quota else NO_GPU
    return ProviderError(
        LocalizedText(sentence, {"text": words.strip().removesuffix(".")}), kind="quota" if is_quota else "overloaded"
    )


class _ToolCalls:
    """Cuts the text of an answer into texts and tool calls, as deltas of Chat Completions.

    Qwen3 writes a call as JSON between two tags. In its reasoning, a tag is a word.
    """

    def __init__(self) -> None:
        self.count = 0
        self._held = ""
        self._tag = OPEN
        """The tag that is looked for: of reasoning, only at the beginning."""

    def feed(self, text: str) -> Iterator[dict[str, Any]]:
        """Yield the deltas to send. Holds back a call that is not whole, and what can be the beginning of a tag."""
        self._held += text
        if self._tag == OPEN:
            if begins_tag(self._held.lstrip()) or not self._held.lstrip():
                return
            self._tag = CLOSE if self._held.lstrip().startswith(OPEN) else CALL
        while True:
            before, tag, rest = self._held.partition(self._tag)
            if self._tag == END_OF_CALL:
                if not tag:
                    return
                yield self._call(before)
            elif before := before + tag * (tag == CLOSE) if tag else self._all_but_a_tag():
                yield {"content": before}
            if not tag:
                return
            self._held, self._tag = rest, END_OF_CALL if tag == CALL else CALL

    def end(self, *, is_whole: bool) -> Iterator[dict[str, Any]]:
        """Yield what is held back. A call that the limit has cut is left out."""
        if self._held and (is_whole or self._tag != END_OF_CALL):
            yield {"content": (CALL if self._tag == END_OF_CALL else "") + self._held}

    def _all_but_a_tag(self) -> str:
        before, self._held = without_begun(self._held, self._tag)
        return before

    def _call(self, text: str) -> dict[str, Any]:
        try:
            call = json.loads(text)
            function = {"name": str(call["name"]), "arguments": json.dumps(dict(call.get("arguments") or {}))}
        except (ValueError, TypeError, KeyError):
            return {"content": f"{CALL}{text}{END_OF_CALL}"}
        self.count += 1
        id_ = f"call_{secrets.token_hex(8)}"
        return {"tool_calls": [{"index": self.count - 1, "id": id_, "type": "function", "function": function}]}
