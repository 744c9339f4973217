"""Arguments of the wrong type or shape are refused with a typed error; what is saved loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from langchain_core.load import dumpd, load
from langchain_core.messages import HumanMessage

from langchain_rag_middle import ChatRagMiddle, DocumentPrompt, RagMiddleLLM
from rag_middle import (
    MethodConfigError,
    ModelNotFoundError,
    PromptError,
    UnsupportedGenerationError,
)

if TYPE_CHECKING:
    from conftest import RecordingModel

KINDS = [ChatRagMiddle, RagMiddleLLM]


@pytest.mark.parametrize("kind", KINDS)
def test_methods_and_options_of_another_type_are_refused(kind: Any, tiny: RecordingModel) -> None:
    model = kind(model=tiny, max_tokens=1)
    for method in (3, [], object(), b"x"):
        for call in (
            lambda method=method: kind(model=tiny, method=method),
            lambda method=method: model.invoke("Why?", method=method),
            lambda method=method: list(model.bind(method=method).stream("Why?")),
        ):
            with pytest.raises(MethodConfigError, match=r"^method must be a name"):
                call()
    for options in (3, "x", [1], object()):
        for named in ({}, {"method": "pine"}):
            with pytest.raises(MethodConfigError, match=r"^method_options must be a mapping"):
                model.invoke("Why?", method_options=options, **named)
        with pytest.raises(UnsupportedGenerationError, match=r"^template_options must be"):
            model.invoke("Why?", template_options=options)


def test_what_has_no_effect_on_a_call_is_refused(tiny: RecordingModel) -> None:
    llm = RagMiddleLLM(model=tiny, max_tokens=1)
    stray: Any = 3
    with pytest.raises(UnsupportedGenerationError, match="no option 'document_prompt' here"):
        llm.invoke("Why?", document_prompt=stray)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["x" * 5000, f"/{'x' * 5000}", "a\0b", "~nobody-here/x"])
def test_a_name_that_no_file_system_takes_is_a_model_not_found(kind: Any, name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="Cannot load"):
        kind(model=name).invoke("Why?")


def test_search_results_inside_search_results_are_refused(tiny: RecordingModel) -> None:
    block: dict[str, Any] = {"type": "text", "text": "Deep."}
    for _ in range(900):
        block = {"type": "search_result", "title": "", "source": "", "content": [block]}
    with pytest.raises(PromptError, match=r"block of message 0 cannot be read"):
        ChatRagMiddle(model=tiny).invoke([HumanMessage([block])])


@pytest.mark.filterwarnings("ignore:The function `load` is in beta")
def test_a_document_prompt_is_loaded_as_it_was_saved() -> None:
    prompt = DocumentPrompt(template="{title}: {page_content}")
    ours = ["langchain_rag_middle"]
    assert load(dumpd(prompt), allowed_objects=[DocumentPrompt], valid_namespaces=ours) == prompt
