"""LLMs of the tiny model, and documents to ask them about."""

from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.llms.rag_middle import DocumentPromptHelper, RagMiddleLLM
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from rag_middle import mark
from tests.applications.libraries import WordEmbedding

SENTENCES = (
    "Lyon lies where the Rhône and the Saône meet.",
    "Nantes lies on the Loire, not far from the sea.",
    "The Garonne flows through Bordeaux on its way to the Atlantic.",
    "Paris, the capital, was built on islands of the Seine.",
    "Strasbourg lies near the Rhine, at the border of Germany.",
    "The Aude flows past Carcassonne and its old walls.",
)

MakeLLM = Callable[..., RagMiddleLLM]


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """LlamaIndex's global settings are as before after each test."""
    import llama_index.core

    for name in vars(Settings):
        monkeypatch.setattr(Settings, name, None)
    monkeypatch.setattr(llama_index.core, "global_tokenizer", None)


@pytest.fixture(scope="session")
def make_llm(network: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> MakeLLM:
    """``make_llm(method=..., ...)``: an LLM of the tiny model; eight tokens per answer."""

    def make(**options: Any) -> RagMiddleLLM:
        chosen = {"model": network, "tokenizer": tokenizer, "max_new_tokens": 8, **options}
        return RagMiddleLLM(**chosen)

    return make


@pytest.fixture
def llm(make_llm: MakeLLM) -> RagMiddleLLM:
    return make_llm()


@pytest.fixture
def nodes() -> list[NodeWithScore]:
    """Six documents, the best first."""
    return [
        NodeWithScore(
            node=TextNode(text=text, id_=f"node-{rank}", metadata={"file": f"{rank}.txt"}),
            score=0.9 - 0.1 * rank,
        )
        for rank, text in enumerate(SENTENCES)
    ]


@pytest.fixture
def index(nodes: list[NodeWithScore]) -> VectorStoreIndex:
    embedding = WordEmbedding(model_name="words")
    return VectorStoreIndex([n.node for n in nodes], embed_model=embedding)


@pytest.fixture
def use() -> Callable[[RagMiddleLLM], None]:
    """``use(llm)``: as the README does it, `Settings` and nothing else."""

    def install(llm: RagMiddleLLM) -> None:
        Settings.llm = llm
        llm.install_tokenizer()
        Settings.prompt_helper = DocumentPromptHelper.from_llm(llm)

    return install


@pytest.fixture(scope="session")
def marked() -> str:
    """A prompt with two marked documents."""
    documents = map(mark, ("Lyon lies on the Rhône.", "Nantes on the Loire."))
    return "\n\n".join(["Read.", *documents, "Which river?"])
