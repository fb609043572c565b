"""Text from the built-in demo model: whole, in parts, and from several threads at once."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import ixc


async def print_parts(model: ixc.Model, prompt: str) -> None:
    """Prints a text as it is generated."""
    async for part in model.generate(prompt, max_tokens=16, stream=True):
        print(part, end="", flush=True)
    print()


def main() -> None:
    with ixc.Model() as model:
        print(model.generate("The borrow checker", max_tokens=16, temperature=0))
        for part in model.generate("A trait is", max_tokens=16, stream=True):
            print(part, end="", flush=True)
        print()
        asyncio.run(print_parts(model, "A lifetime is"))
        prompts = ["The borrow checker", "A trait is", "A lifetime is", "A macro is"]
        with ThreadPoolExecutor() as threads:
            for text in threads.map(lambda prompt: model.generate(prompt, max_tokens=8), prompts):
                print(text)
        print(model.generate(prompts, max_tokens=8))


main()
