"""A question about images: `python examples/images.py "What is this?" picture.jpg`"""

import asyncio
import sys

import PIL.Image

from agent import Agent, Image, InputError


async def main(question: str, *paths: str) -> None:
    """Ask about the images in files, or about a red square. `Image.from_url` downloads an image from the web."""
    pictures = [Image.from_path(path) for path in paths] or [PIL.Image.new("RGB", (64, 64), "red")]
    async with Agent("auto") as agent:
        try:
            result = await agent.ask([question, *pictures])
        except InputError as error:  # raised before any request if the model takes no images; it names some that do
            print(error)
        else:
            print(result.text)


if __name__ == "__main__":
    asyncio.run(main(*(sys.argv[1:] or ["What colour is this?"])))
