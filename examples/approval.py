"""A tool that needs approval, and a model that asks questions: `python examples/approval.py "Delete my oldest mail."`

A run that waits for an answer ends as suspended. The sealed text can be stored and resumed days later.
"""

import asyncio
import sys

from agent import Agent, Approve, Pending, Refuse, Seals, ask_user, tool

DELETED: list[int] = []


@tool(needs_approval=True)
def delete(mail: int) -> str:
    """Delete a mail for good."""
    DELETED.append(mail)
    return f"Mail {mail} is deleted."


async def main(wish: str) -> None:
    """Ask, and answer the questions and approvals of the run."""
    # Use your own key, usually from the environment, so that another process can open the sealed text.
    seals = Seals(keys={"2026": "a long secret that is kept elsewhere"})
    async with Agent("auto", tools=[delete, ask_user], seals=seals) as agent:
        result = await agent.ask(wish)
        while result.suspension is not None:
            print(f"sealed: {len(result.suspension)} characters")
            result = await agent.resume(result.suspension, {one.call_id: answer(one) for one in result.pending})
        print(result.text)


def answer(pending: Pending) -> str | Approve | Refuse:
    """Return the answer of the person at the keyboard."""
    if pending.kind == "question":
        return input(f"{pending.question} {' / '.join(pending.choices)} ")
    said = input(f"Allow {pending.name} {dict(pending.arguments)}? [y/N] ")
    return Approve() if said == "y" else Refuse("The user does not want that.")


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:]) or "Delete my oldest mail, number 7."))
