"""Measures documents: reading a long PDF, searching many passages, and answers about three documents with known facts.

`python -m bench.documents` writes its documents itself (`bench.planted_facts`), and measures each of the three in a
process of its own, whose memory it prints:

- a PDF of 300 pages, read as on the page, in the sandbox, and in the same run by a bare loop over pypdfium2
- the index of 10,000 passages, and searches in it by keywords, by vectors and by both, each for a fact that is in one
  of the passages; and `Chat.search`, which does all of that. The vectors count groups of letters (`tests.support`):
  their times and memory are those of other vectors of that length, what they find is not
- 24 questions about three documents: is the right page in what a model gets with the question, is it the first one
  that the tool `search_files` returns, and does the small model of the page answer rightly and name it

`--model NAME` asks another model than the small one, and `--model ""` none.
"""

import argparse
import asyncio
import gc
import multiprocessing
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil
from pydantic_ai.messages import BinaryContent, ModelRequest, UserPromptPart

from agent import Agent, Chat, Context, Endpoint, ModelSpec, RunResult, connect
from agent.files.for_model import document_room
from agent.files.kinds import PDF, Document
from agent.files.passages import best_excerpts, excerpts
from agent.files.ranking import Passage, VectorIndex, digest_of, fused, indexed, pack
from agent.files.reading import read_in_sandbox
from agent.local.launch import launch_llama
from agent.models.weights import SMOLLM2, find
from agent.settings import load_settings
from bench.planted_facts import Fact, written
from tests.support.documents import pdf
from tests.support.embeddings import LENGTH, hashed_vectors
from tests.support.scripted_server import Config, running

CONTEXTS = (2_048, 8_192, 32_768)
"""Tokens that the models read for which passages are chosen: the first is the small model."""
PASSAGES_PER_PAGE = 4
CANDIDATES = 100
"""Passages of each order that are fused, as in `Chat.search`."""
FOUND_IN = (1, 10)
"""The first hits among which the passage with the fact is looked for."""
_PAGE = re.compile(r"^\[Page (\d+)\]$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a measurement. `rounds` are readings of the PDF, and `whole` are the calls of `Chat.search`."""

    pages: int = 300
    rounds: int = 5
    passages: int = 10_000
    searches: int = 200
    whole: int = 20
    document_pages: int = 120
    questions: int = 24


Row = tuple[str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench. Return the exit status."""
    default = Sizes()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name in ("pages", "rounds", "passages", "searches", "whole", "document_pages", "questions"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(default, name))
    parser.add_argument("--model", default=SMOLLM2.spec.id, help="the model that answers, or '' for none")
    given = vars(parser.parse_args(arguments))
    model = given.pop("model")
    sizes = Sizes(**given)
    with tempfile.TemporaryDirectory() as folder:
        print_table(f"A PDF of {sizes.pages} pages", apart(measure_reading, Path(folder), sizes))
        print_table(f"{sizes.passages:,} passages", apart(measure_search, Path(folder), sizes))
        title = f"{sizes.questions} questions about three documents of {sizes.document_pages} pages"
        print_table(title, apart(measure_answers, Path(folder), sizes, model))
    return 0


def apart(measure: Callable[..., list[Row]], *arguments: Any) -> list[Row]:
    """Measure in a new process, so that its memory is that of this measurement alone."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, *arguments).result()


def print_table(title: str, rows: Sequence[Row]) -> None:
    """Print the rows as Markdown."""
    print(f"\n| {title} | |\n|---|---|")
    for name, figure in rows:
        print(f"| {name} | {figure} |", flush=True)


# Reading


def measure_reading(folder: Path, sizes: Sizes) -> list[Row]:
    """Read the PDF as the page does, and by a bare loop in this process."""
    (texts,), _facts = written(1, sizes.pages, 10)
    data = pdf(texts)
    times: list[float] = []
    document = Document(PDF, "", ())
    with peak_of_children() as peaks:
        for _ in range(sizes.rounds):
            began = time.perf_counter()
            document = read_in_sandbox(data, PDF)
            times.append(time.perf_counter() - began)
    bare = [bare_reading(data) for _ in range(sizes.rounds)]
    if len(document.pages) != sizes.pages:
        raise RuntimeError(f"{len(document.pages)} of {sizes.pages} pages were read")
    ratio = statistics.median(times) / statistics.median(bare)
    return [
        ("size of the file, of its text", f"{len(data) / 1e3:.0f} kB, {sum(map(len, document.pages)) / 1e3:.0f} kB"),
        ("read in the sandbox, median", f"{statistics.median(times) * 1000:.0f} ms"),
        ("slowest", f"{max(times) * 1000:.0f} ms"),
        ("times the bare loop over pypdfium2", f"{ratio:.2f}"),
        ("memory of the process that reads", f"{max(peaks, default=0) / 2**20:.0f} MB"),
    ]


def bare_reading(data: bytes) -> float:
    """Return the seconds in which pypdfium2 reads the text of all pages, without limits and without another process."""
    # Late, because the server never loads it.
    import pypdfium2  # pyright: ignore[reportMissingTypeStubs]

    began = time.perf_counter()
    document: Any = pypdfium2.PdfDocument(data)
    for page in document:
        page.get_textpage().get_text_bounded()
    document.close()
    return time.perf_counter() - began


@contextmanager
def peak_of_children() -> Generator[list[int]]:
    """Yield the highest bytes of memory of the child processes, looked at every 5 ms."""
    peaks: list[int] = []
    done = Event()

    def look() -> None:
        own = psutil.Process()
        while not done.wait(0.005):
            for child in own.children(recursive=True):
                try:
                    peaks.append(child.memory_info().rss)
                except psutil.Error:  # it has ended
                    continue

    thread = Thread(target=look)
    thread.start()
    try:
        yield peaks
    finally:
        done.set()
        thread.join()


# Searching


def measure_search(folder: Path, sizes: Sizes) -> list[Row]:
    """Index the passages and search for each fact, by the parts of `Chat.search` and by itself."""
    pages = max(1, sizes.passages // PASSAGES_PER_PAGE)
    files = max(1, pages // 300)
    texts, facts = written(files, -(-pages // files), sizes.searches)
    documents = [Document(PDF, "", tuple(each)) for each in texts]
    before = memory()
    began = time.perf_counter()
    passages, keywords = indexed(documents)
    index_s, index_mb = time.perf_counter() - began, memory() - before
    before = memory()
    began = time.perf_counter()
    vectors = hashed_vectors([one.text for one in passages])
    embed_s = time.perf_counter() - began
    began = time.perf_counter()
    index = VectorIndex()
    index.add(pack([one.text for one in passages], vectors))
    vectors_s = time.perf_counter() - began
    del vectors
    vectors_mb = memory() - before
    asked = hashed_vectors([one.question for one in facts])
    digests = [digest_of(one.text) for one in passages]
    ways: dict[str, Callable[[int], Sequence[int]]] = {
        "keywords": lambda at: keywords.ranked(facts[at].question),
        "vectors": lambda at: index.nearest(digests, asked[at], CANDIDATES),
        "both": lambda at: fused(
            keywords.ranked(facts[at].question)[:CANDIDATES], index.nearest(digests, asked[at], CANDIDATES)
        ),
    }
    rows = [
        ("passages, of files", f"{len(passages):,}, {files}"),
        ("index of the words", f"{index_s:.1f} s, {index_mb:.0f} MB"),
        (f"index of vectors of {LENGTH} numbers", f"{vectors_s:.1f} s, {vectors_mb:.0f} MB"),
        ("making these vectors, which the operator's server does otherwise", f"{embed_s:.1f} s"),
    ]
    for name, search in ways.items():
        times, orders = timed(search, len(facts))
        rows += [
            (f"search by {name}, median, p95", spread(times)),
            (f"passage found by {name}", hits(orders, passages, facts)),
        ]
    return [*rows, *measure_chat_search(folder, texts, facts, sizes.whole), ("memory of this process", peak())]


def measure_chat_search(folder: Path, texts: Sequence[Sequence[str]], facts: Sequence[Fact], calls: int) -> list[Row]:
    """Measure `Chat.search`, with the documents as PDF and with the embeddings of a server on loopback."""
    files = [BinaryContent(pdf(each), media_type=PDF, identifier=name_of(at)) for at, each in enumerate(texts)]
    context = Context(messages=(ModelRequest([UserPromptPart(files)]),))
    rows: list[Row] = []
    with running(Config(rate=0, models=("small",), embed=hashed_vectors)) as server:
        for way, address in (("keywords", ""), ("both", server.base_url)):
            agent = Agent(connect(spec_of(CONTEXTS[1]), Endpoint(server.base_url)))
            with Chat(agent, context=context, embeddings=address) as chat:
                began = time.perf_counter()
                chat.search(facts[0].question)
                first = time.perf_counter() - began
                times: list[float] = []
                right = 0
                for fact in facts[:calls]:
                    began = time.perf_counter()
                    found = chat.search(fact.question)
                    times.append(time.perf_counter() - began)
                    best = found.hits[0] if found.hits else None
                    right += best is not None and (best.file, best.page) == (name_of(fact.document), fact.page)
                rows += [
                    (f"`Chat.search` by {way}, the first, which reads the files", f"{first:.1f} s"),
                    (f"`Chat.search` by {way}, median, p95", spread(times)),
                    (f"`Chat.search` by {way}, right page first", f"{right} of {len(times)}"),
                ]
    return rows


def timed(search: Callable[[int], Sequence[int]], count: int) -> tuple[list[float], list[Sequence[int]]]:
    """Return the seconds of each search after a first one, and what it found."""
    search(0)
    times: list[float] = []
    orders: list[Sequence[int]] = []
    for at in range(count):
        began = time.perf_counter()
        orders.append(search(at))
        times.append(time.perf_counter() - began)
    return times, orders


def hits(orders: Sequence[Sequence[int]], passages: Sequence[Passage], facts: Sequence[Fact]) -> str:
    """Return how often the passage with the fact is among the first hits."""
    places = [
        next((place for place, at in enumerate(order, 1) if fact.sentence in passages[at].text), sys.maxsize)
        for order, fact in zip(orders, facts, strict=True)
    ]
    parts = [f"{sum(place <= most for place in places)} in the first {most}" for most in FOUND_IN]
    return f"{', '.join(parts)}, of {len(facts)}"


# Answers


def measure_answers(folder: Path, sizes: Sizes, model: str) -> list[Row]:
    """Ask about three documents."""
    texts, facts = written(3, sizes.document_pages, 4 * sizes.questions)
    facts = facts[: sizes.questions]
    documents = [read_in_sandbox(pdf(each), PDF) for each in texts]
    rows: list[Row] = []
    for context in CONTEXTS:
        spec = spec_of(context)
        sent = [excerpts(documents, fact.question, document_room(spec, fact.question)) for fact in facts]
        right = sum(is_under_its_page(found[fact.document].text, fact) for found, fact in zip(sent, facts, strict=True))
        name = f"right page sent to a model of {context:,} tokens without tools"
        rows.append((name, f"{right} of {len(facts)}"))
    room = document_room(spec_of(CONTEXTS[1])) // 4
    for_tools = [best_excerpts(documents, fact.question, room) for fact in facts]
    found = [one[fact.document] for one, fact in zip(for_tools, facts, strict=True)]
    right = sum(one is not None and is_under_its_page(one.text, fact) for one, fact in zip(found, facts, strict=True))
    rows.append((f"right page in a result of `search_files` for {CONTEXTS[1]:,} tokens", f"{right} of {len(facts)}"))
    if model:
        rows += asyncio.run(ask_all(model, folder, texts, facts))
    return [*rows, ("memory of this process", peak())]


async def ask_all(model: str, folder: Path, texts: Sequence[Sequence[str]], facts: Sequence[Fact]) -> list[Row]:
    """Ask the model each question in a new conversation, with the three documents."""
    paths = [folder / name_of(at) for at in range(len(texts))]
    for path, each in zip(paths, texts, strict=True):
        path.write_bytes(pdf(each))
    answers: list[RunResult] = []
    times: list[float] = []
    async with answering(model) as agent:
        if agent is None:
            return [(f"answers of {model}", "it is not installed: run `make setup`")]
        for fact in facts:
            began = time.perf_counter()
            answers.append(await agent.ask([f"{fact.question} Name the page, too.", *paths], max_tokens=120))
            times.append(time.perf_counter() - began)
    if failed := [one for one in answers if one.failed]:
        return [(f"answers of {model}", f"{len(failed)} of {len(answers)} failed: {failed[0].failure}")]
    pairs = [*zip(answers, facts, strict=True)]
    right = sum(fact.value in one.text for one, fact in pairs)
    cited = sum(re.search(rf"(?i)\bpages? {fact.page}\b", one.text) is not None for one, fact in pairs)
    return [
        (f"right answers of {model}", f"{right} of {len(facts)}"),
        (f"right page named by {model}", f"{cited} of {len(facts)}"),
        (f"an answer of {model}, median, p95", spread(times)),
    ]


@asynccontextmanager
async def answering(model: str) -> AsyncGenerator[Agent | None]:
    """Yield the agent that answers, or None if the small model is not installed."""
    if model != SMOLLM2.spec.id:
        async with Agent(model) as agent:
            yield agent
        return
    path = await find(SMOLLM2, load_settings().local.cache_dir)
    if path is None:
        yield None
        return
    spec = SMOLLM2.spec
    child, endpoint, _ = await launch_llama(
        path, name=spec.name, context=spec.context_tokens, kv_bytes=SMOLLM2.kv_bytes, key="bench", port=0, answers=1
    )
    try:
        async with Agent(connect(replace(spec, examples=()), endpoint)) as agent:
            yield agent
    finally:
        await child.aclose()


def is_under_its_page(text: str, fact: Fact) -> bool:
    """Return True if the sentence is in the text, after the mark of its page."""
    before, found, _ = text.partition(fact.sentence)
    return bool(found) and _PAGE.findall(before)[-1:] == [str(fact.page)]


def spec_of(context: int) -> ModelSpec:
    """Return a model that reads so many tokens."""
    return ModelSpec(id="vllm:small", name="small", label="Small", provider="vllm", context_tokens=context)


def name_of(number: int) -> str:
    """Return the name of a document."""
    return f"report-{number + 1}.pdf"


def spread(times: Sequence[float]) -> str:
    """Return the median and the p95 of these seconds."""
    ordered = sorted(times)
    p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    return f"{milliseconds(statistics.median(ordered))}, {milliseconds(p95)} ms"


def milliseconds(seconds: float) -> str:
    """Return three digits of the milliseconds, or all before the point."""
    return f"{seconds * 1000:.3g}" if seconds < 1 else f"{seconds * 1000:.0f}"


def memory() -> float:
    """Return the MB of this process that are in memory now."""
    gc.collect()
    return psutil.Process().memory_info().rss / 2**20


def peak() -> str:
    """Return the most memory that this process has had."""
    status = Path(f"/proc/{os.getpid()}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return f"{int(found[1]) / 1024:.0f} MB" if found else ""


if __name__ == "__main__":
    sys.exit(main())
