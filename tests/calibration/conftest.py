"""A tiny LLaMA with random weights, and examples that it answers right about half of the time."""

from collections.abc import Callable

import pytest

from rag_middle.calibration import Example
from rag_middle.documents import ContextPrompt, Document
from rag_middle.generation import RagMiddleModel
from tests.tiny_models import speaking
from tests.tokenizers import byte_level_bpe

NOUNS = "fox dog river capital document question answer France Paris Lyon".split()


@pytest.fixture(scope="session")
def model() -> RagMiddleModel:
    return speaking("calibration", byte_level_bpe(bos=True), num_hidden_layers=4)


def prompt(question: int, position: int) -> ContextPrompt:
    documents = [Document(f"The {noun} {question} is quick.", id=noun) for noun in NOUNS[:4]]
    gold = Document(f"The lazy {NOUNS[question % 10]} {question} jumps.", id="gold")
    documents.insert(position, gold)
    return ContextPrompt("Read.\n\n", documents, f"Who {question}? Answer:")


@pytest.fixture(scope="session")
def examples(model: RagMiddleModel) -> Callable[..., list[Example]]:
    """``examples(12, start=0)``: every other answer is what the model writes by itself."""

    def make(count: int, *, start: int = 0) -> list[Example]:
        made, positions = [], (0, 2, 4)
        for index in range(count):
            question, position = start + index // len(positions), positions[index % len(positions)]
            asked = prompt(question, position)
            said = model.generate(asked, max_new_tokens=2).text
            answer = said if index % 2 and said else " the fox"
            made.append(
                Example(question=f"q{question}", position=position, prompt=asked, answer=answer)
            )
        return made

    return make
