"""Attacks with texts that are costly to read: formulas, marks after letters, and names of models."""

from collections.abc import Callable

from bench.attack.client import Client, Reply


def say(text: str) -> Callable[[str], Reply]:
    """Return an attack that sends this text, which the model answers with the same."""

    def attack(url: str) -> Reply:
        with Client(url) as client:
            return client.chat(f"!text {text}", seconds=30)

    return attack


ATTACKS: dict[str, Callable[[str], object]] = {
    "a formula of 8,000 Greek letters": say("$" + "\u03b1" * 8_000 + "$"),
    "30,000 marks after a letter": say("a" + "\u0315" * 15_000 + "\u0327" * 15_000),
}
