"""A tiny model that the tests of several integrations load, and what models were sent."""

import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.prompts.default_prompt_selectors import DEFAULT_TEXT_QA_PROMPT_SEL
from llama_index.core.query_engine.citation_query_engine import CITATION_QA_TEMPLATE
from transformers import LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

from rag_middle import RagMiddleModel
from tests.scripted import write
from tests.tiny_models import build, tiny
from tests.tokenizers import CHATML, byte_level_bpe

TEMPLATES = (CITATION_QA_TEMPLATE, DEFAULT_TEXT_QA_PROMPT_SEL.default_template)


@pytest.fixture(autouse=True, scope="session")
def _offline() -> Iterator[None]:
    """No test asks the network for anything: no model, no tiktoken or NLTK file."""
    found = socket.getaddrinfo

    def only_local(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host not in ("localhost", "127.0.0.1", "::1", None):
            raise AssertionError(f"A test asks the network for {host}.")
        return found(host, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", only_local)
        yield


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level, a few hundred tokens, ChatML, a BOS before every text."""
    corpus = [template.get_template() for template in TEMPLATES] + [" 3" * 20]
    return byte_level_bpe(bos=True, chat_template=CHATML, corpus=corpus, learned=600)


@pytest.fixture(scope="session")
def network(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """Leave it as it was: most tests get the same object. Its answers run to their limit."""
    config = tiny(LlamaConfig, vocab_size=len(tokenizer), max_position_embeddings=4096)
    # float64: PINE's sums run in another order for other documents, and must not tip a choice.
    network: Any = build("integrations", config, "sdpa").double()
    network.lm_head.weight.data[tokenizer.all_special_ids] = 0.0
    return network  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def saved(
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The model as `from_pretrained` loads it."""
    folder = tmp_path_factory.mktemp("tiny-model")
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def said(
    network: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> Iterator[Callable[..., None]]:
    """``said("first answer", "second answer")``: what the model will write, call after call."""
    model = RagMiddleModel(network, tokenizer)  # finds out about the network by running it

    def forget() -> None:
        network._forward_pre_hooks.clear()
        network.lm_head._forward_hooks.clear()

    def script(*texts: str) -> None:
        forget()
        write(model, *texts)

    yield script
    forget()


@dataclass(frozen=True)
class Sent:
    """A prompt that a model was sent.

    Attributes:
        ids: all of its tokens.
        text: of these, special ones included.
        documents: the text of every document span, without what separates them, in the method's
            order.
        options: of the call.
        batch_size: prompts of the call.
    """

    ids: tuple[int, ...]
    text: str
    documents: list[str]
    options: Mapping[str, Any]
    batch_size: int


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Sent]:
    """Every prompt that is sent to a model from here on."""
    prompts: list[Sent] = []
    generation = RagMiddleModel._generation

    def recorded(self: RagMiddleModel, given: Any, options: Any) -> Any:
        request = generation(self, given, options)
        for prompt in request.prompts:
            ids, decode = prompt.tokens.input_ids, self.tokenizer.decode
            documents = [decode(part).strip("\n") for part in prompt.tokens.documents_ids]
            prompts.append(Sent(ids, decode(ids), documents, options, len(given)))
        return request

    monkeypatch.setattr(RagMiddleModel, "_generation", recorded)
    return prompts
