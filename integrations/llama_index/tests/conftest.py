"""A tiny model with a chat template, documents to ask it about, and a record of its calls."""

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.prompts.default_prompt_selectors import DEFAULT_TEXT_QA_PROMPT_SEL
from llama_index.core.query_engine.citation_query_engine import CITATION_QA_TEMPLATE
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.llms.rag_middle import DocumentPromptHelper, RagMiddleLLM
from transformers import LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

from rag_middle import ContextPrompt, RagMiddleModel, mark
from rag_middle.documents import MarkedText
from rag_middle.generation import GenerationStream
from rag_middle.options import EncodeKwargs
from tests.scripted import write
from tests.tiny_models import build, tiny
from tests.tokenizers import CHATML, byte_level_bpe

SENTENCES = (
    "Lyon lies where the Rhône and the Saône meet.",
    "Nantes lies on the Loire, not far from the sea.",
    "The Garonne flows through Bordeaux on its way to the Atlantic.",
    "Paris, the capital, was built on islands of the Seine.",
    "Strasbourg lies near the Rhine, at the border of Germany.",
    "The Aude flows past Carcassonne and its old walls.",
)
QUESTION = "On which river does Nantes lie?"

# Of fixtures below; tests import them for type checkers only.
MakeLLM = Callable[..., RagMiddleLLM]
Use = Callable[[RagMiddleLLM], None]
User = Callable[[str], list[ChatMessage]]


@pytest.fixture(autouse=True, scope="session")
def _offline() -> Iterator[None]:
    """No test asks the network for anything: no model, no tiktoken or NLTK file."""
    found = socket.getaddrinfo

    def only_local(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host not in ("localhost", "127.0.0.1", "::1", None):
            raise AssertionError(f"A test asks the network for {host}.")
        return found(host, *args, **kwargs)

    patch = pytest.MonkeyPatch()
    patch.setattr(socket, "getaddrinfo", only_local)
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """LlamaIndex's global settings are as before after each test."""
    import llama_index.core

    for name in vars(Settings):
        monkeypatch.setattr(Settings, name, None)
    monkeypatch.setattr(llama_index.core, "global_tokenizer", None)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level, a few hundred tokens, ChatML, a BOS before every text."""
    return small_tokenizer(CHATML)


@pytest.fixture(scope="session")
def plain_tokenizer() -> PreTrainedTokenizerFast:
    """The same without a chat template."""
    return small_tokenizer(None)


def small_tokenizer(chat_template: str | None) -> PreTrainedTokenizerFast:
    templates = (CITATION_QA_TEMPLATE, DEFAULT_TEXT_QA_PROMPT_SEL.default_template)
    corpus = [*SENTENCES, *(template.get_template() for template in templates)]
    return byte_level_bpe(bos=True, chat_template=chat_template, corpus=corpus, learned=600)


@pytest.fixture(scope="session")
def network(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """Two layers of random weights, large enough that order matters. It ends no text itself."""
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 4096}
    return build("llama_index", tiny(LlamaConfig, num_hidden_layers=2, **sizes), "sdpa")


@pytest.fixture(scope="session")
def saved(
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The tiny model as a folder."""
    folder = tmp_path_factory.mktemp("tiny-model")
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


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


@dataclass(frozen=True)
class Call:
    """What one call of the model was sent."""

    text: str
    options: dict[str, Any]
    documents: int  # a document that is cut is none, and warned of
    ids: tuple[int, ...]


def _marked(content: Any) -> str:
    """A message's content as text with markers."""
    if isinstance(content, ContextPrompt):
        return content.marked
    return content.text if isinstance(content, MarkedText) else content


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Every call of a model from here on."""
    recorded: list[Call] = []
    generate, stream = RagMiddleModel.generate, RagMiddleModel.stream

    def record(self: RagMiddleModel, prompt: Any, options: dict[str, Any]) -> None:
        if isinstance(prompt, ContextPrompt):
            prompt = prompt.marked
        messages = (
            [{"role": "user", "content": prompt}]
            if isinstance(prompt, str)
            else [{**m, "content": _marked(m["content"])} for m in prompt]
        )
        read = [m["content"] for m in messages if m["role"] != "assistant"]
        text = "\n".join(m["content"] for m in messages)
        documents = sum(len(MarkedText(content).documents()) for content in read)
        shaping = {name: options[name] for name in EncodeKwargs.__annotations__ if name in options}
        recorded.append(Call(text, options, documents, self.encode(prompt, **shaping).input_ids))

    def recording_generate(self: RagMiddleModel, prompt: Any, **options: Any) -> Any:
        record(self, prompt, options)
        return generate(self, prompt, **options)

    def recording_stream(self: RagMiddleModel, prompt: Any, **options: Any) -> GenerationStream:
        record(self, prompt, options)
        return stream(self, prompt, **options)

    monkeypatch.setattr(RagMiddleModel, "generate", recording_generate)
    monkeypatch.setattr(RagMiddleModel, "stream", recording_stream)
    return recorded


class LetterEmbedding(BaseEmbedding):
    """Counts of letters, length 1: near enough to meaning for a test."""

    def _vector(self, text: str) -> list[float]:
        counts = torch.tensor([float(text.lower().count(chr(97 + i))) for i in range(26)])
        return (counts / counts.norm().clamp(min=1e-6)).tolist()

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._vector(text)

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._vector(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._vector(query)


@pytest.fixture(scope="session")
def embedding() -> LetterEmbedding:
    return LetterEmbedding(model_name="letters")


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
def index(nodes: list[NodeWithScore], embedding: LetterEmbedding) -> VectorStoreIndex:
    return VectorStoreIndex([n.node for n in nodes], embed_model=embedding)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, embedding: LetterEmbedding) -> Use:
    """``use(llm)``: as the README does it, `Settings` and nothing else."""

    def install(llm: RagMiddleLLM) -> None:
        Settings.llm = llm
        Settings.embed_model = embedding
        llm.install_tokenizer()
        Settings.prompt_helper = DocumentPromptHelper.from_llm(llm)

    return install


@pytest.fixture
def unstripped_streams() -> None:
    """Skips where llama-index takes spaces from the ends of answers, in streams alone."""
    if tuple(map(int, version("llama-index-core").split("."))) < (0, 14, 25):
        pytest.skip("llama-index-core before 0.14.25 strips streamed answers")


@pytest.fixture
def question() -> str:
    return QUESTION


@pytest.fixture(scope="session")
def marked() -> str:
    """A prompt with two marked documents."""
    documents = map(mark, ("Lyon lies on the Rhône.", "Nantes on the Loire."))
    return "\n\n".join(["Read.", *documents, "Which river?"])


@pytest.fixture
def said(network: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> Iterator[Callable]:
    """``said("first answer", "second answer")``: what the model will write, call after call."""
    model = RagMiddleModel(network, tokenizer)  # finds out about the network by running it
    handles: list[Any] = []

    def script(*texts: str) -> None:
        for handle in handles:
            handle.remove()
        handles[:] = write(model, *texts)

    network.generation_config.eos_token_id = tokenizer.eos_token_id
    yield script
    for handle in handles:
        handle.remove()
    network.generation_config.eos_token_id = None


@pytest.fixture
def user() -> User:
    """``user("...")``: a conversation of one message."""
    return lambda text: [ChatMessage(role="user", content=text)]
