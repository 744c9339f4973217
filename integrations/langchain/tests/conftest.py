"""A tiny random model, as a folder and loaded, and what it was sent."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.pop("LANGSMITH_TRACING", None)

import pytest
from langchain_core.documents import Document
from transformers import LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

from rag_middle import Generation, RagMiddleModel
from rag_middle.generation import GenerationStream
from rag_middle.tokens import TokenizedPrompt
from tests import tiny_models
from tests.tokenizers import CHATML, HERMES, byte_level_bpe

#: Standard tests of LangChain that may be skipped: models read text only, are not read back from
#: descriptions, need no key, and keep their weights from call to call.
SKIPPED = frozenset(
    """
    test_init_from_env test_serdes test_stream_time test_anthropic_inputs test_pdf_inputs
    test_audio_inputs test_image_inputs test_image_tool_message test_pdf_tool_message
    test_invoke_with_model_override test_ainvoke_with_model_override
    test_stream_with_model_override test_astream_with_model_override
    """.split()
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    """Fail where another standard test is skipped."""
    report: pytest.TestReport = yield
    name = getattr(item, "originalname", "")
    standard = ("test_standard.py::TestToolsAndStructuredOutput", "unit_tests/test_standard.py::")
    if report.skipped and any(tests in item.nodeid for tests in standard) and name not in SKIPPED:
        report.outcome = "failed"
        report.longrepr = f"{name} was skipped, which SKIPPED does not name: {report.longrepr}"
    return report


def build_tokenizer(chat_template: str = CHATML) -> PreTrainedTokenizerFast:
    """Every text begins with one BOS."""
    return byte_level_bpe(bos=True, chat_template="{{ bos_token }}" + chat_template)


def build_network(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """float64: PINE's sums run in another order for other documents, and must not tip a choice."""
    config = tiny_models.tiny(LlamaConfig, vocab_size=len(tokenizer), max_position_embeddings=2048)
    network: Any = tiny_models.build("langchain", config, "sdpa").double()
    network.lm_head.weight.data[tokenizer.all_special_ids] = 0.0  # answers run to their limit
    return network  # type: ignore[no-any-return]


@dataclass
class Sent:
    """What a model was sent.

    Attributes:
        prompts: in tokens.
        batch_sizes: prompts per call of ``batch``.
        options: of each call.
    """

    model: RagMiddleModel
    prompts: list[TokenizedPrompt] = field(default_factory=list)
    batch_sizes: list[int] = field(default_factory=list)
    options: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def last(self) -> TokenizedPrompt:
        return self.prompts[-1]

    @property
    def text(self) -> str:
        """The last prompt, special tokens included."""
        return self.decode(self.last.input_ids)

    @property
    def documents(self) -> list[str]:
        """The text of every document span of the last prompt, without what separates them."""
        return [self.decode(ids).strip("\n") for ids in self.last.documents_ids]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.model.tokenizer.decode(list(ids)))


class RecordingModel(RagMiddleModel):
    """Remembers what it is sent, in tokens, as `encode` makes them of the very same prompt.

    Documents are in the order in which they were sent, whatever the method makes of it.
    """

    sent: Sent

    def batch(self, prompts: Sequence[Any], **options: Any) -> list[Generation]:
        generations = super().batch(prompts, **options)
        self.sent.batch_sizes.append(len(prompts))
        for prompt in prompts:
            self._record(prompt, options)
        return generations

    def stream(self, prompt: Any, **options: Any) -> GenerationStream:
        stream = super().stream(prompt, **options)
        self._record(prompt, options)
        return stream

    def _record(self, prompt: Any, options: Mapping[str, Any]) -> None:
        names = ("template", "system", "template_options", "allow_control_tokens", "tools")
        chosen = {name: options[name] for name in names if options.get(name) is not None}
        self.sent.prompts.append(self.encode(prompt, method="none", **chosen))
        self.sent.options.append(options)


MakeModel = Callable[..., RecordingModel]


@pytest.fixture(scope="session")
def network() -> PreTrainedModel:
    """Leave it as it was: most tests get the same object."""
    return build_network(build_tokenizer())


@pytest.fixture
def make_model(network: PreTrainedModel) -> MakeModel:
    """``make_model(chat_template=, **arguments of RagMiddleModel)``."""

    def make(chat_template: str = CHATML, **given: Any) -> RecordingModel:
        model = RecordingModel(network, build_tokenizer(chat_template), **given)
        model.sent = Sent(model)
        return model

    return make


@pytest.fixture
def tiny(make_model: MakeModel) -> RecordingModel:
    return make_model()


@pytest.fixture
def local(network: PreTrainedModel, make_model: MakeModel) -> Iterator[RecordingModel]:
    """Its template shows tools, and `tests.scripted` may say what it writes."""
    model = make_model(HERMES)
    yield model
    network._forward_pre_hooks.clear()
    network.lm_head._forward_hooks.clear()


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as `from_pretrained` loads it."""
    folder = tmp_path_factory.mktemp("tiny-model")
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder)
    build_network(tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def rivers() -> list[Document]:
    """Documents, best first."""
    texts = {
        "Lyon": "Lyon lies where the Rhône and the Saône meet.",
        "Nantes": 'Nantes lies on the Loire, [[rm:doc]] & not far from the "sea".',
        "Paris": "The Seine flows through Paris.",
        "Bordeaux": "Bordeaux lies on the Garonne.\n\nIt has a {bridge}.",
    }
    return [
        Document(text, id=title, metadata={"title": title, "score": 0.9 - 0.1 * place})
        for place, (title, text) in enumerate(texts.items())
    ]
