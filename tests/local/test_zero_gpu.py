"""The model of a ZeroGPU Space: its parser, what the hub refuses, and a tiny Qwen3 on the CPU.

The tiny model has the environment of vLLM's tests behind this one, for PyTorch and Transformers.
"""

import asyncio
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, ClassVar, cast
from urllib.parse import parse_qs

import gradio as gr
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import Agent
from agent.errors import ProviderError
from agent.local import zero_gpu
from agent.local.zero_gpu import MOST_SECONDS, _explained, _Loaded, _ToolCalls, most_tokens, seconds_for, visitor_token
from agent.models.catalog import load_catalog
from agent.providers.connection import connect
from agent.settings import ROOT
from tests.tiers import examples

QUESTION, CALL = "Weather in Paris?", {"name": "weather", "arguments": {"city": "Paris"}}
TEXTS = (
    "Hello.",
    "<think>\nA <tool_call> is a tag.\n</think>\n\nHello <b>.",
    f"<think>Hm.</think>\n\n<tool_call>\n{json.dumps(CALL)}\n</tool_call>",
    f"First <tool_call>{json.dumps(CALL)}</tool_call>\n<tool_call>{json.dumps(CALL)}</tool_call> last",
    "<tool_call>{no JSON}</tool_call>",
    "<tool_call>[1]</tool_call>",
    "a <think> is a word <tool_",
    "  <think>never ended <tool_call>",
)


def parts(pieces: list[str], *, is_whole: bool = True) -> list[Any]:
    """Return the text, joined, and the calls, in order."""
    calls, found = _ToolCalls(), list[Any]()
    for delta in [*(delta for piece in pieces for delta in calls.feed(piece)), *calls.end(is_whole=is_whole)]:
        if "content" in delta and found and isinstance(found[-1], str):
            found[-1] += delta["content"]
        else:
            found.append(delta.get("content") or json.loads(delta["tool_calls"][0]["function"]["arguments"]))
    return found


@settings(max_examples=examples(40))
@given(text=st.sampled_from(TEXTS), data=st.data())
def test_pieces_of_an_answer_mean_what_the_whole_means(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)) | {0, len(text)})
    assert parts([text[a:b] for a, b in pairwise(cuts)]) == parts([text])


def test_calls_are_cut_out_and_all_else_stays() -> None:
    assert [parts([text]) for text in TEXTS] == [
        ["Hello."],
        ["<think>\nA <tool_call> is a tag.\n</think>\n\nHello <b>."],
        ["<think>Hm.</think>\n\n", {"city": "Paris"}],
        ["First ", {"city": "Paris"}, "\n", {"city": "Paris"}, " last"],
        ["<tool_call>{no JSON}</tool_call>"],
        ["<tool_call>[1]</tool_call>"],
        ["a <think> is a word <tool_"],
        ["  <think>never ended <tool_call>"],
    ]
    assert parts(['Yes. <tool_call>{"name": "wea'], is_whole=False) == ["Yes. "]


# The sentences of `spaces.zero.client.schedule`, version 0.51.3.
@pytest.mark.parametrize(
    ("title", "message", "kind", "words"),
    [
        (
            "ZeroGPU quota exceeded",
            "You have exceeded your free ZeroGPU quota (60s requested vs. 21s left). Try again in 3:05:00. "
            "[Subscribe to Pro](https://huggingface.co/subscribe/pro?from=ZeroGPU) to get more.",
            "quota",
            ["21s left", "Pro (https://huggingface.co/subscribe/pro?from=ZeroGPU) to get"],
        ),
        ("ZeroGPU quota exceeded", "Space app has reached its GPU limit.", "quota", ["Space app has reached"]),
        ("ZeroGPU pending credits exceeded", "You have too many.", "quota", ["too many"]),
        ("ZeroGPU queue timeout", "No GPU was available after 60s", "overloaded", ["available after 60s"]),
        ("ZeroGPU worker error", "GPU task aborted", "overloaded", ["GPU task aborted"]),
    ],
)
def test_refusal_of_the_hub_is_a_sentence(title: str, message: str, kind: str, words: list[str]) -> None:
    error = _explained(gr.Error(message, title=title))
    assert error.kind == kind
    assert all(word in str(error) for word in words)
    assert str(error).startswith("Your time on the GPU" if kind == "quota" else "The GPU of this Space cannot be used")


def test_failure_of_the_model_shows_no_details() -> None:
    assert str(_explained(RuntimeError("/root/secret"))) == "The model server failed in the middle of the answer."


class Tensor(list[int]):
    """What Transformers gives to a streamer, as far as it is read."""

    def flatten(self) -> "Tensor":
        return self

    def tolist(self) -> list[int]:
        return [*self]


class Writer:
    """A model that fails in its first answer, before the first token, and then writes two tokens."""

    device = "cpu"

    def __init__(self) -> None:
        self.answers = 0

    def generate(self, *, input_ids: list[list[int]], streamer: Any, **_: Any) -> None:
        self.answers += 1
        if self.answers == 1:
            raise RuntimeError("CUDA out of memory")
        for tokens in (*input_ids, [7], [8]):
            streamer.put(Tensor(tokens))
        streamer.end()


async def test_failure_before_the_first_token_ends_the_answer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = SimpleNamespace(tensor=lambda ids, device: ids, ones_like=lambda ids: ids)
    monkeypatch.setitem(sys.modules, "torch", cast(Any, torch))
    loaded = _Loaded(load_catalog().find("Qwen/Qwen3-4B", "vllm"), None, Writer(), zero_gpu._generate)
    monkeypatch.setattr(zero_gpu, "_loaded", loaded)

    async def answer() -> list[int]:
        options = {"max_new_tokens": 9}
        async with asyncio.timeout(60):
            return [one async for one in zero_gpu._in_thread(lambda: loaded.generate([1, 2], options), None)]

    with pytest.raises(ProviderError, match="failed in the middle of the answer"):
        await answer()
    assert await answer() == [7, 8]


@settings(max_examples=examples(40))
@given(length=st.integers(0, zero_gpu.CONTEXT_TOKENS))
def test_answer_without_a_limit_fits_into_the_borrowed_seconds(length: int) -> None:
    prompt = [1] * length
    most = most_tokens(prompt)
    assert most > 0
    assert seconds_for(prompt, {"max_new_tokens": most}) == MOST_SECONDS <= 60
    assert zero_gpu._options({}, most) == zero_gpu._options({"max_tokens": 10**6}, most) == {"max_new_tokens": most}


def test_failed_report_to_the_hub_leaves_the_other_models(monkeypatch: pytest.MonkeyPatch) -> None:
    def startup() -> None:
        raise ConnectionError("the hub does not answer")

    modules = {
        "spaces": SimpleNamespace(GPU=lambda duration: lambda function: function),
        "spaces.utils": SimpleNamespace(gradio_request_var=lambda: None),
        "spaces.zero": SimpleNamespace(startup=startup),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, cast(Any, module))
    said = list[str]()
    zero_gpu.load("./no-such-model", said.append)
    assert said[-1] == "./no-such-model could not be loaded (ConnectionError), so other models answer."
    assert zero_gpu.served() == ()


# The hub's package, where it is installed

HUB = """
import asyncio, json, sys
sys.path[:] = json.loads(sys.argv[1])
from agent.web.gradio_compat.import_hook import import_gradio
import_gradio()
from agent.local import zero_gpu
zero_gpu.load(None, print)
import os, spaces
from contextlib import aclosing
from spaces.utils import gradio_request_var

def count(prompt, options):
    yield os.getpid()
    yield from range(10_000)

async def ask():
    run = lambda: spaces.GPU(duration=zero_gpu.seconds_for)(count)([1, 2], {"max_new_tokens": 1000})
    zero_gpu.visitor_token.set("e30.e30.e30")
    async with aclosing(zero_gpu._in_thread(run, gradio_request_var())) as tokens:
        print("elsewhere" if await anext(tokens) != os.getpid() else "here")
        assert await anext(tokens) == 0
    await asyncio.to_thread(zero_gpu._one_at_a_time.acquire)
    zero_gpu._one_at_a_time.release()
    print("stopped")
    await anext(zero_gpu._in_thread(run, gradio_request_var()))

try:
    asyncio.run(ask())
except Exception as error:
    print(error.kind, error)
"""


class Lender(BaseHTTPRequestHandler):
    """What lends the GPU, as `spaces.zero.api` calls it, version 0.51.3: the first time it does, and then no more."""

    asked: ClassVar = list[str]()

    def do_POST(self) -> None:
        path, query = self.path.partition("?")[::2]
        is_used_up = path == "/schedule" and any(one.startswith(path) for one in self.asked)
        self.asked.append(f"{path} {parse_qs(query).get('token', [''])[0]}".strip())
        lent = {"idle": False, "nvidiaIndex": 0, "nvidiaUUID": "GPU-0", "allowToken": "t"}
        body = json.dumps({"left": 21, "wait": 11_100} if is_used_up else lent).encode()
        self.send_response(429 if is_used_up else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.mark.slow
def test_hub_lends_its_gpu_to_another_process(tmp_path: Path) -> None:
    if find_spec("spaces") is None:
        pytest.skip("The hub's package spaces is only in the environment of a Gradio Space")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Lender)
    Thread(target=server.serve_forever, daemon=True).start()
    env = {
        **os.environ,
        "SPACES_ZERO_GPU": "true",
        "SPACES_ZERO_DEVICE_API_URL": f"http://127.0.0.1:{server.server_port}",
        "HOME": str(tmp_path),
    }
    command = [sys.executable, "-c", HUB, json.dumps([str(ROOT), *sys.path])]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    server.shutdown()
    server.server_close()
    said = [line for line in done.stdout.splitlines() if not line.startswith("SPACES_ZERO_GPU_DEBUG")]
    assert [line for line in said if line in ("elsewhere", "here", "stopped")] == ["elsewhere", "stopped"]
    assert said[-1].startswith("quota Your time on the GPU of this Space is used up for now. The hub says:")
    assert "21s left" in said[-1]
    assert Lender.asked[0] == "/startup-report"
    assert Lender.asked.count("/schedule e30.e30.e30") == 2
    assert {"/allow", "/release"} <= {*Lender.asked}


# A tiny Qwen3

TEMPLATE = """\
{%- if tools %}<|im_start|>system
{%- for tool in tools %}{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}{{ message.content }}
{%- for call in message.tool_calls %}<tool_call>{{ call.function.arguments }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}{% endif %}"""
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
SCRIPT = ["\n", "<think>", "Hm.", "</think>", "<tool_call>", json.dumps(CALL), "</tool_call>", "<|im_end|>"]
"""Each token of this text leads to the next one in the model with a script."""


def tiny_qwen3(folder: Path, script: list[str]) -> Path:
    """Save a Qwen3 with random weights and a tokenizer of bytes. With a script, each token of it leads to the next."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_ = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    bytes_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_.decoder = decoders.ByteLevel()
    bytes_.add_special_tokens(SPECIAL)
    bytes_.add_tokens([AddedToken(text, special=False, normalized=False) for text in [*TAGS, "Hm.", json.dumps(CALL)]])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = TEMPLATE
    ids = [tokenizer(text)["input_ids"][-1] for text in script]
    torch.manual_seed(0)
    size = len(tokenizer)
    config = Qwen3Config(
        vocab_size=size,
        hidden_size=size + size % 2 if script else 32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = Qwen3ForCausalLM(config)
    if script:
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith(("o_proj.weight", "down_proj.weight", "lm_head.weight")):
                    weight.zero_()
            model.model.embed_tokens.weight.copy_(torch.eye(size, config.hidden_size))
            for before, after in pairwise(ids):
                model.lm_head.weight[after, before] = 1.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Path]]:
    (behind,) = (ROOT / ".venv-vllm/lib").glob("python*/site-packages")
    sys.path.append(str(behind))  # behind: all packages of the app have their own versions
    made = dict[bool, Path]()

    def make(*, with_script: bool) -> Path:
        if with_script not in made:
            folder = tmp_path_factory.mktemp("models") / "Qwen3-Tiny"
            made[with_script] = tiny_qwen3(folder, SCRIPT if with_script else [])
        return made[with_script]

    yield make
    sys.path.remove(str(behind))


@pytest.fixture
def agent(request: pytest.FixtureRequest, made: Callable[..., Path], monkeypatch: Any) -> Callable[..., Agent]:
    """Return a function for an agent on the tiny model; with the parameter True, on the one with a script."""
    said = list[str]()
    monkeypatch.setattr(zero_gpu, "_loaded", None)
    zero_gpu.load(str(made(with_script=request.param)), said.append, on_zero_gpu=False)
    (served,) = zero_gpu.served()
    assert said == [f"Loading {made(with_script=request.param)} for the GPU of this Space."]
    return lambda **more: Agent(connect(served.spec, served.endpoint), **more)


def with_model(*, script: bool) -> Any:
    def mark(test: Any) -> Any:
        marks = pytest.mark.parametrize("agent", [script], indirect=True, ids=["script" if script else "random"])
        return pytest.mark.timeout(600)(pytest.mark.vllm(marks(test)))

    return mark


@with_model(script=True)
async def test_reasoning_and_a_call_come_out_of_the_tokens(agent: Callable[..., Agent]) -> None:
    asked = list[str]()

    def weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return "rain"

    async with agent(tools=[weather]) as one:
        run = one.run(QUESTION, temperature=0, reasoning=True)
        kinds = list[tuple[str, Any]]()
        async for response in run:
            kinds.append((response.type, response.content))
            if response.type == "tool_call_result":
                run.cancel()
    assert asked == ["Paris"]
    assert [kind for kind, _ in kinds] == ["reasoning", "tool_call", "tool_call_result"]
    assert kinds[0][1] == "Hm."


@with_model(script=False)
async def test_answer_streams_and_is_counted_and_bounded(agent: Callable[..., Agent]) -> None:
    async with agent() as one:
        run = one.run(QUESTION, temperature=0, max_tokens=40, reasoning=False)
        pieces = [response.content async for response in run]
        result = await run
        again = await one.ask(QUESTION, temperature=0, max_tokens=40, reasoning=False)
        unbounded = await one.ask(QUESTION, temperature=0)
    assert result.finish_reason == "length"
    assert (result.usage["output_tokens"], result.text) == (40, again.text)
    assert len(pieces) > 1
    assert unbounded.usage["output_tokens"] <= 256  # half of its context
    assert result.usage["input_tokens"] == len(f"S user\n{QUESTION}E\nS assistant\nTT") - 2


@with_model(script=False)
async def test_stop_ends_the_model_and_the_next_one_gets_its_turn(agent: Callable[..., Agent]) -> None:
    async with agent() as one:
        first = one.run(QUESTION, max_tokens=256)
        first.start()
        second = one.run(QUESTION, max_tokens=3)
        second.start()
        await first.wait_for_update(3)
        assert not second.done
        first.cancel("user_request")
        assert (await first).finish_reason == "cancelled"
        assert (await second).usage["output_tokens"] == 3
    assert not zero_gpu._one_at_a_time.locked()


@with_model(script=False)
async def test_too_long_conversation_is_refused_with_numbers(agent: Callable[..., Agent]) -> None:
    async with agent() as one:
        result = await one.ask("x" * 600)
    assert result.finish_reason == "error"
    assert "reads at most 512" in result.note.detail


@with_model(script=False)
async def test_visitor_is_named_where_the_hub_looks(agent: Callable[..., Agent], monkeypatch: Any) -> None:
    """On ZeroGPU the arguments and tokens go to another process, and `spaces` reads the request of Gradio's event."""
    seen, place = list[Any](), ContextVar[Any]("request", default=None)
    loaded = zero_gpu._loaded
    assert loaded is not None

    def elsewhere(*arguments: Any) -> Iterator[int]:
        seen.append((request := place.get()) and request.headers.get("x-ip-token"))
        assert seconds_for(*arguments) <= MOST_SECONDS
        for token in loaded.generate(*pickle.loads(pickle.dumps(arguments))):
            yield pickle.loads(pickle.dumps(token))

    monkeypatch.setattr(zero_gpu, "_loaded", replace(loaded, generate=elsewhere, request=place))
    async with agent() as one:
        await one.ask(QUESTION, max_tokens=2)
        visitor_token.set("header.payload.signature")
        await one.ask(QUESTION, max_tokens=2)
    assert seen == [None, "header.payload.signature"]


@with_model(script=False)
async def test_quota_is_explained_and_the_next_answer_works(agent: Callable[..., Agent], monkeypatch: Any) -> None:
    loaded = zero_gpu._loaded
    assert loaded is not None

    def refused(*_: Any) -> Iterator[int]:
        raise gr.Error("You have exceeded your quota (60s requested vs. 21s left).", title="ZeroGPU quota exceeded")
        yield 0

    with monkeypatch.context() as patched:
        patched.setattr(zero_gpu, "_loaded", replace(loaded, generate=refused))
        async with agent() as one:
            result = await one.ask(QUESTION, max_tokens=2)
        assert (result.finish_reason, "21s left" in result.note.detail) == ("error", True)
    async with agent() as one:
        assert (await one.ask(QUESTION, max_tokens=2)).usage["output_tokens"] == 2
