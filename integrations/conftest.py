"""A tiny model that the tests of several integrations load, and what models were sent."""

import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

from rag_middle import RagMiddleModel
from tests.applications.world import TEXTS
from tests.scripted import write
from tests.tiny_models import build, tiny
from tests.tokenizers import CHATML, CORPUS, byte_level_bpe

LOCAL = ("localhost", "127.0.0.1", "::1", None)


@pytest.fixture(autouse=True, scope="session")
def _offline() -> Iterator[None]:
    """No test asks the network for anything: no model, no tiktoken or NLTK file."""
    found, connected = socket.getaddrinfo, socket.socket.connect

    def only_local(host: Any, *args: Any, **kwargs: Any) -> Any:
        assert host in LOCAL, f"A test asks the network for {host}."
        return found(host, *args, **kwargs)

    def connect(self: socket.socket, address: Any) -> None:
        # A path is local; a datagram socket sends nothing yet, and learns its own address so.
        local = isinstance(address, str | bytes) or address[0] in LOCAL
        assert local or self.type != socket.SOCK_STREAM, f"A test connects to {address}."
        connected(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", only_local)
        patch.setattr(socket.socket, "connect", connect)
        yield


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level, a few hundred tokens, ChatML, a BOS before every text."""
    corpus = [*CORPUS, *TEXTS.values(), " 3" * 20]
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
