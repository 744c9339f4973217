"""Clients of OpenAI's API, as docs/serving.md shows them."""

import asyncio
from collections.abc import Iterator

import pytest

from rag_middle.generation import RagMiddleModel
from tests.serving.conftest import Served, serving
from tests.test_code_blocks import ROOT, Block, blocks

PAGE = ROOT / "docs" / "serving.md"
EXAMPLES = [
    block
    for block in blocks(PAGE, "python", excused=True)
    if "test_clients" in (block.excuse or "")
]
METHODS = ("pine", "none", "lpes:reader")


@pytest.fixture(scope="module")
def served(reader: RagMiddleModel) -> Iterator[Served]:
    with serving(reader, METHODS) as server:
        yield server


@pytest.fixture(autouse=True)
def _event_loop() -> Iterator[None]:
    """LlamaIndex makes one where there is none, and leaves it open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.mark.parametrize("block", EXAMPLES, ids=["openai", "langchain", "llama_index"])
def test_examples_of_the_page(
    served: Served, block: Block, capsys: pytest.CaptureFixture[str]
) -> None:
    code = block.code.replace("http://127.0.0.1:8000", served.url)
    code = code.replace("Qwen/Qwen2.5-1.5B-Instruct", "tested")
    exec(compile(code, f"{PAGE.name}:{block.line}", "exec"), {})
    assert "Lyon" in capsys.readouterr().out
