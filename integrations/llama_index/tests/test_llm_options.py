"""Options of calls to RagMiddleLLM."""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from llama_index.llms.rag_middle import RagMiddleLLM
from transformers import PreTrainedTokenizerFast

from rag_middle import MethodConfigError, UnknownNameError, UnsupportedGenerationError


def test_stopping_ids_end_the_text(
    make_llm: Any, said: Any, tokenizer: PreTrainedTokenizerFast
) -> None:
    said("The Loire.<|im_end|>More")
    control = tokenizer.convert_tokens_to_ids("<|im_end|>")
    llm = make_llm(max_new_tokens=40, stopping_ids=[control])
    assert llm.complete("Which?").text == "The Loire."
    assert llm.complete("Which?", stop="Loire").text == "The "
    with pytest.raises(UnsupportedGenerationError, match="stopping_ids"):
        make_llm(stopping_ids=[10**6])


def test_pickles_and_copies_keep_the_options_and_no_weights(saved: Path, make_llm: Any) -> None:
    llm = RagMiddleLLM(
        model_name=saved,
        method="ms_poe",
        method_options={"max_ratio": 2.0, "first_layer": 0},
        generate_kwargs={"temperature": 0.5, "seed": 1},
        max_new_tokens=3,
        system_prompt="Be short.",
        model_kwargs={"token": "hf_SECRET"},
    )
    pickled = pickle.dumps(llm)
    assert len(pickled) < 5000
    assert b"hf_SECRET" not in pickled
    assert "hf_SECRET" not in f"{llm!r} {llm.to_json()} {llm.model_dump()}"
    for again in (pickle.loads(pickled), copy.deepcopy(llm), copy.copy(llm)):
        assert again.to_dict() == llm.to_dict()
        assert again.rag_middle_model.method == llm.rag_middle_model.method
        assert again.rag_middle_model.model is llm.rag_middle_model.model
        assert again.complete("Hello").text == llm.complete("Hello").text
    changed = copy.deepcopy(llm)
    changed.generate_kwargs["seed"] = 2
    assert llm.generate_kwargs["seed"] == 1
    with pytest.raises(UnsupportedGenerationError, match="model_name="):
        pickle.dumps(make_llm())


@pytest.fixture
def named_llm(saved: Path) -> Callable[..., RagMiddleLLM]:
    """Makes LLMs by name."""
    return partial(RagMiddleLLM, model_name=saved)


def test_a_method_of_a_call_has_no_options_of_another(
    named_llm: Callable[..., RagMiddleLLM], marked: str
) -> None:
    own = {"method": "ms_poe", "method_options": {"layers": [2]}}
    llm = named_llm(generate_kwargs=own, max_new_tokens=1)
    assert llm._options({})["method_options"] == {"layers": [2]}
    assert "method_options" not in llm._options({"method": "siw"})
    assert llm.complete(marked, method="none").raw["rag_middle"]["method"] == "none"


def test_a_method_that_is_set_runs(named_llm: Callable[..., RagMiddleLLM], marked: str) -> None:
    def report(llm: RagMiddleLLM) -> str:
        return str(llm.complete(marked).raw["rag_middle"]["method"])

    llm = named_llm(method="lpes", method_options={"factors": [1, 1, 2.0]}, max_new_tokens=1)
    llm.method = "siw"
    assert report(llm) == "siw"
    llm.method_options = {"alpha_dense": 0.3}
    copied = llm.model_copy(update={"method": "pine"})
    stated = named_llm(method="siw", method_options={"alpha_dense": 0.3}, max_new_tokens=1)
    assert llm.to_dict() == stated.to_dict()
    assert llm.rag_middle_model.method == stated.rag_middle_model.method
    assert report(copied) == "pine"
    assert copied.to_dict()["method_options"] == {}
    assert report(llm) == "siw"
    assert copied.rag_middle_model.model is llm.rag_middle_model.model


def test_what_cannot_be_set_is_refused_and_changes_nothing(
    named_llm: Callable[..., RagMiddleLLM],
) -> None:
    llm = named_llm(method="siw")
    before = llm.to_dict()
    with pytest.raises(UnknownNameError, match="'pine'"):
        llm.method = "pin"
    with pytest.raises(UnknownNameError, match="'pine'"):
        llm.model_copy(update={"method": "pin"})
    with pytest.raises(MethodConfigError):
        llm.method_options = {"factors": [1.0]}
    for name in ("model_name", "tokenizer_name", "model_kwargs"):
        with pytest.raises(UnsupportedGenerationError, match="make another"):
            setattr(llm, name, "other")
    assert llm.to_dict() == before


def test_misspelt_names_are_refused_with_the_nearest_one() -> None:
    from llama_index.llms.rag_middle import MarkDocuments, RagMiddleEmbedding

    with pytest.raises(UnsupportedGenerationError, match="Did you mean 'method'"):
        RagMiddleLLM(metod="pine")
    with pytest.raises(UnsupportedGenerationError, match="Did you mean 'model_name'"):
        RagMiddleEmbedding(model_nam="x")
    with pytest.raises(ValueError, match="ordr"):
        MarkDocuments(ordr="fixed")
