"""`python -m bench.small_model`: 30 simple questions to SmolLM2-135M, with and without example exchanges.

Uses the real model, served and asked as on the page. Takes three minutes and writes docs/small-model.md.
"""

import asyncio
import re
from dataclasses import dataclass, replace

from agent.agent import Agent
from agent.local.launch import launch_llama
from agent.models.weights import SMOLLM2, find
from agent.providers.connection import Endpoint, connect
from agent.settings import ROOT, load_settings
from agent.web.chat.system_prompt import default_prompt

REPORT = ROOT / "docs" / "small-model.md"
HELPFUL = "You are a helpful assistant. Answer briefly and correctly, in English."
FRUITS = "apple|banana|orange|grape|mango|strawberr|pear|peach|cherr|lemon|kiwi|pineapple"
COLORS = "red|blue|green|yellow|black|white|orange|purple"
QUESTIONS = {
    "What is the capital of France?": "Paris",
    "What is the capital of Italy?": "Rome",
    "What is the capital of Japan?": "Tokyo",
    "What is the capital of Germany?": "Berlin",
    "What is the capital of Egypt?": "Cairo",
    "Which is the largest planet of the solar system?": "Jupiter",
    "Which planet is closest to the sun?": "Mercury",
    "What is 2 + 2?": r"(?i)\b(4|four)\b",
    "What is 7 + 5?": r"(?i)\b(12|twelve)\b",
    "What is 3 times 4?": r"(?i)\b(12|twelve)\b",
    "What is H2O?": "(?i)water",
    "Who wrote Hamlet?": "Shakespeare",
    "Who painted the Mona Lisa?": "Leonardo|da Vinci",
    "What do bees make?": "(?i)honey",
    "What color is the sky on a clear day?": "(?i)blue",
    "How many days are in a week?": r"(?i)\b(7|seven)\b",
    "How many legs does a spider have?": r"(?i)\b(8|eight)\b",
    "What is the opposite of hot?": "(?i)cold",
    "What is the past tense of 'go'?": r"(?i)\bwent\b",
    "Which animal says meow?": r"(?i)\bcat\b",
    "Name three fruits.": rf"(?is)(?:({FRUITS}).*){{3}}",
    "Name two colors.": rf"(?is)({COLORS}).*({COLORS})",
    "What is photosynthesis?": "(?is)plants.*(light|sun|energy)",
    "What is gravity?": "(?i)force|attract|pull",
    "Write a Python function that adds two numbers.": r"(?s)def \w+\((\w+), (\w+)\):.*return \1 \+ \2",
    "Write a haiku about the sea.": "(?i)sea|wave|ocean|water|tide|shore",
    "Hello!": r"(?i)^(hello|hi)\b",
    "Thank you!": "(?i)welcome|glad|happy",
    "Translate 'good morning' to Spanish.": "(?i)buenos d[ií]as",
    "Which language is spoken in Brazil?": "Portuguese",
}
"""Each question with a pattern that matches a right answer."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to ask. If `system` is None, it is the page's system prompt; "" is none."""

    name: str
    examples: tuple[tuple[str, str], ...]
    system: str | None = None
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The model's answer, and whether it is right."""

    question: str
    text: str
    right: bool


SHIPPED = SMOLLM2.spec.examples
FIVE = (*SHIPPED, ("What is 5 + 3?", "5 + 3 = 8."), ("What color is grass?", "Grass is green."))
VARIANTS = (
    Variant("three examples, the page's system prompt (shipped)", SHIPPED),
    Variant("no examples, the page's system prompt", ()),
    Variant("five examples, the page's system prompt", FIVE),
    Variant("three examples, no system prompt", SHIPPED, system=""),
    Variant("three examples, a system prompt that asks for short answers", SHIPPED, system=HELPFUL),
    Variant("no examples, a system prompt that asks for short answers", (), system=HELPFUL),
    Variant("three examples, the page's system prompt, temperature 0.2", SHIPPED, temperature=0.2),
)


async def answers(endpoint: Endpoint, variant: Variant) -> list[Answer]:
    """Ask every question in a separate conversation."""
    spec = replace(SMOLLM2.spec, examples=variant.examples)
    system = default_prompt(load_settings(), spec) if variant.system is None else variant.system
    found: list[Answer] = []
    async with Agent(connect(spec, endpoint), system_message=system) as agent:
        for question, pattern in QUESTIONS.items():
            result = await agent.ask(question, temperature=variant.temperature, max_tokens=spec.max_output_tokens)
            found.append(Answer(question, result.text, re.search(pattern, result.text) is not None))
    return found


async def measure() -> dict[Variant, list[Answer]]:
    """Measure every variant."""
    path = await find(SMOLLM2, load_settings().local.cache_dir)
    if path is None:
        raise SystemExit("SmolLM2 is not installed: run `make setup`")
    spec = SMOLLM2.spec
    child, endpoint, _ = await launch_llama(
        path, name=spec.name, context=spec.context_tokens, kv_bytes=SMOLLM2.kv_bytes, key="bench", port=0
    )
    try:
        found: dict[Variant, list[Answer]] = {}
        for variant in VARIANTS:
            found[variant] = await answers(endpoint, variant)
            print(f"{right(found[variant])} of {len(QUESTIONS)}: {variant.name}", flush=True)
        return found
    finally:
        await child.aclose()


def right(found: list[Answer]) -> int:
    """Count the right answers."""
    return sum(answer.right for answer in found)


def report(found: dict[Variant, list[Answer]]) -> str:
    """Return the table of variants, and the table of questions with the answers of the first two variants."""
    shipped, plain = found[VARIANTS[0]], found[VARIANTS[1]]
    lines = [
        "# What the small model answers",
        "",
        "SmolLM2-135M is the model that answers where nothing better is there: a tiny demo model. Each request to it",
        "begins with three example exchanges (`SMOLLM2` in `agent/models/weights.py`), and it decodes greedily.",
        "`python -m bench.small_model` asked these questions, each in a new conversation, and wrote this page.",
        "",
        "| asked with | right, of 30 |",
        "| --- | --- |",
        *(f"| {variant.name} | {right(some)} |" for variant, some in found.items()),
        "",
        "| question | answer, as shipped | right | answer without examples | right |",
        "| --- | --- | --- | --- | --- |",
    ]
    for ours, bare in zip(shipped, plain, strict=True):
        cells = (ours.question, _cell(ours), _yes(ours), _cell(bare), _yes(bare))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(answer: Answer) -> str:
    text = " ".join(answer.text.split()).replace("|", "\\|")
    return text if len(text) <= 160 else text[:160] + " …"


def _yes(answer: Answer) -> str:
    return "yes" if answer.right else "no"


if __name__ == "__main__":
    REPORT.write_text(report(asyncio.run(measure())), encoding="utf-8")
