"""A tiny random model, as a folder and loaded, and what it was sent."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Before transformers is imported: no test may ask the network for anything.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.pop("LANGSMITH_TRACING", None)

import pytest
import torch
from langchain_core.documents import Document
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rag_middle import Generation, RagMiddleModel
from rag_middle.generation import GenerationStream
from rag_middle.tokens import TokenizedPrompt
from tests import scripted

CORPUS = (
    "Answer the question from the documents. Question: which river flows through the town?",
    "Lyon lies where the Rhône and the Saône meet. Nantes lies on the Loire. Paris on the Seine.",
    "0 1 2 3 4 5 6 7 8 9 ( ) [ ] { } < > | / \\ : ; , . ! ? ' \" - _ = + * & ^ % $ # @ ~ `",
)
CHATML = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: ChatML with tools, as the templates of the Hermes and Qwen families write them.
TOOLS = (
    "{{ bos_token }}{% if tools %}<|im_start|>system\n<tools>\n{% for tool in tools %}"
    "{{ tool | tojson }}\n{% endfor %}</tools>\nCall one so: <tool_call>\n"
    '{"name": <name>, "arguments": <arguments>}\n</tool_call><|im_end|>\n{% endif %}'
    "{% for m in messages %}{% if m['role'] == 'tool' %}<|im_start|>user\n<tool_response>\n"
    "{{ m['content'] }}\n</tool_response><|im_end|>\n{% else %}<|im_start|>{{ m['role'] }}\n"
    "{{ m['content'] }}{% for call in m.tool_calls or [] %}<tool_call>\n"
    "{{ call.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tokenizer(chat_template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """Bytes and some pairs of them; every text begins with one BOS."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    special = ["<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>"]
    backend.add_special_tokens([AddedToken(text, special=True) for text in special])
    backend.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        chat_template=chat_template,
    )


def build_network(tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> LlamaForCausalLM:
    """float64: PINE's sums run in another order for other documents, and must not tip a choice."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.5,  # large, so that attention is not uniform and order matters
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = LlamaForCausalLM(config).double().eval()
    network.lm_head.weight.data[tokenizer.all_special_ids] = 0.0  # answers run to their limit
    return network


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

#: Standard tests of LangChain that are skipped for a model that calls tools. No others may be.
SKIPPED = {
    "test_init_from_env": "a local model needs no key; huggingface_hub itself reads `HF_TOKEN`",
    "test_invoke_with_model_override": "weights do not change from call to call: refused",
    "test_ainvoke_with_model_override": "the same",
    "test_stream_with_model_override": "the same",
    "test_astream_with_model_override": "the same",
    "test_serdes": "models are not read back from descriptions",
    "test_pdf_inputs": "models read text only",
    "test_audio_inputs": "models read text only",
    "test_image_inputs": "models read text only",
    "test_image_tool_message": "models read text only",
    "test_pdf_tool_message": "models read text only",
    "test_anthropic_inputs": "its messages hold images",
    "test_stream_time": "it compares with recorded traffic of a service",
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    """Fail where a standard test is skipped that should not be."""
    report: pytest.TestReport = yield
    standard = ("test_standard.py::TestToolsAndStructuredOutput", "unit_tests/test_standard.py::")
    name = getattr(item, "originalname", "")
    if report.skipped and any(tests in item.nodeid for tests in standard) and name not in SKIPPED:
        report.outcome = "failed"
        report.longrepr = f"{name} was skipped, which SKIPPED does not declare: {report.longrepr}"
    return report


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def make_model() -> MakeModel:
    """``make_model(chat_template=, seed=, **arguments of RagMiddleModel)``."""

    def make(chat_template: str | None = CHATML, seed: int = 0, **given: Any) -> RecordingModel:
        tokenizer = build_tokenizer(chat_template)
        model = RecordingModel(build_network(tokenizer, seed), tokenizer, **given)
        model.sent = Sent(model)
        return model

    return make


def _prefer(model: RagMiddleModel, *texts: str) -> None:
    """Have the model prefer these tokens, the first one most.

    Under constrained decoding it then writes the shortest JSON there is.
    """
    ids = [model.tokenizer.encode(c, add_special_tokens=False) for c in texts]
    bias = torch.zeros(len(model.tokenizer), dtype=torch.double)
    for rank, token in enumerate(ids):
        bias[token[-1]] = 1e4 - 100 * rank
    untyped: Any = model.model
    untyped.lm_head.register_forward_hook(lambda _, __, logits: logits + bias)


@pytest.fixture
def tiny(make_model: MakeModel) -> RecordingModel:
    """A model of its own for the test."""
    return make_model()


@pytest.fixture(scope="session")
def templates() -> Mapping[str, str]:
    return {"chatml": CHATML, "tools": TOOLS}


@pytest.fixture(scope="session")
def write() -> Callable[..., None]:
    """``write(model, *texts)``, see `tests.scripted`."""
    return scripted.write


@pytest.fixture(scope="session")
def prefer() -> Callable[..., None]:
    """``prefer(model, *tokens)``, see `_prefer`."""
    return _prefer


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
