"""A chat that keeps its own history: `python examples/chat.py "Who are you?" "And in French?"`"""

import sys

from agent import Agent, Chat, display


def main(*prompts: str) -> None:
    """Send the prompts one after the other, and print the answers as they stream."""
    with Chat(Agent("auto", system_message="Be brief.")) as chat:
        for prompt in prompts:
            for response in chat.query(prompt, reasoning=True):
                display(response)
            print()
        print(f"{len(chat.messages)} messages")


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["Who are you?", "And in French?"]))
