"""The tests' reader, things that do not exist, and a model whose answers are written for it."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from haystack import Document
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack_integrations.components.generators.rag_middle import RagMiddleChatGenerator

from rag_middle import RagMiddleModel
from tests.applications.world import TEXTS
from tests.reader import reader_path
from tests.scripted import write

#: The roles of the reader, and tools as the templates of Hermes and Qwen write them.
TOOLS = (
    "{{ bos_token }}{% if tools %}<|system|><tools>{% for tool in tools %}{{ tool | tojson }}"
    '{% endfor %}</tools> Call one so: <tool_call>\n{"name": <name>, "arguments": <arguments>}\n'
    "</tool_call><|end|>{% endif %}{% for m in messages %}{% if m['role'] == 'tool' %}<|user|>"
    "<tool_response>{{ m['content'] }}</tool_response>{% else %}<|{{ m['role'] }}|>"
    "{{ m['content'] }}{% for call in m.tool_calls or [] %}<tool_call>\n"
    "{{ call.function | tojson }}\n</tool_call>{% endfor %}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="session")
def model_name() -> str:
    return str(reader_path())


@pytest.fixture(scope="session")
def loaded(model_name: str) -> RagMiddleModel:
    """The reader; as long as it is there, components that name it share its weights."""
    return RagMiddleChatGenerator(model_name).rag_middle_model


@pytest.fixture
def generator(loaded: RagMiddleModel, model_name: str) -> RagMiddleChatGenerator:
    """The reader under PINE."""
    options = {"max_new_tokens": 24}
    return RagMiddleChatGenerator(model_name, method="pine", generation_kwargs=options)


@pytest.fixture(scope="session")
def documents() -> list[Document]:
    return [
        Document(id=name.split()[0].lower(), content=text, meta={"title": name})
        for name, text in TEXTS.items()
    ]


@pytest.fixture
def store(documents: list[Document]) -> InMemoryDocumentStore:
    store = InMemoryDocumentStore()
    store.write_documents(documents)
    return store


@pytest.fixture
def writing(loaded: RagMiddleModel) -> Callable[..., RagMiddleChatGenerator]:
    """``writing("first answer", ...)``: a component whose model knows tools and writes just that.

    One text per call, the last one again and again.
    """

    def make(*texts: str, method: str = "none", **arguments: Any) -> RagMiddleChatGenerator:
        tokenizer = deepcopy(loaded.tokenizer)
        tokenizer.chat_template = TOOLS
        model = RagMiddleModel(deepcopy(loaded.model), tokenizer, method=method)
        write(model, *texts)
        return RagMiddleChatGenerator(model, **arguments)

    return make
