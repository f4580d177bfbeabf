"""A question about images: `python examples/images.py "What is this?" picture.jpg`"""

import asyncio
import sys

import PIL.Image

from agent import Agent, Image


async def main(question: str, *paths: str) -> None:
    """Ask about the images in files, or about a red square. `Image.from_url` downloads an image from the web."""
    pictures = [Image.from_path(path) for path in paths] or [PIL.Image.new("RGB", (64, 64), "red")]
    async with Agent("Qwen/Qwen3-VL-8B-Instruct") as agent:
        result = await agent.ask([question, *pictures])
        print(result.text)


if __name__ == "__main__":
    asyncio.run(main(*(sys.argv[1:] or ["What colour is this?"])))
