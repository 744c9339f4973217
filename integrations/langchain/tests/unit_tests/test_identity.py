"""What caches and traces know a model by, and which models share weights."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.load import dumps
from langchain_core.prompt_values import StringPromptValue

from langchain_rag_middle import ChatRagMiddle, DocumentPrompt, RagMiddleLLM
from rag_middle import (
    MethodConfigError,
    RagMiddleModel,
    UnknownNameError,
    UnsupportedGenerationError,
)
from rag_middle.methods import MsPoE

CLASSES = [ChatRagMiddle, RagMiddleLLM]


def key(model: Any) -> str:
    """What LangChain looks answers up by, besides the prompt."""
    if isinstance(model, ChatRagMiddle):
        return model._get_llm_string()
    return str(sorted({**model.asdict(), "stop": None}.items()))


DIFFERENT: list[dict[str, Any]] = [
    {},
    {"method": "pine"},
    {"method": MsPoE(max_ratio=2.0)},
    {"temperature": 0.5},
    {"stop": ["x"]},
    {"template_options": {"a": 1}},
    {"document_prompt": DocumentPrompt(template="- {page_content}")},
]
OF_LOADING: list[dict[str, Any]] = [
    {"dtype": "float32"},
    {"context_window": 100},
    {"quantization_config": {"load_in_4bit": True}},
]


@pytest.mark.parametrize("kind", CLASSES)
def test_models_that_answer_differently_have_different_keys(kind: Any, saved: Path) -> None:
    models = [kind(model=saved, **settings) for settings in DIFFERENT + OF_LOADING]
    models.append(kind(model="another/model"))
    assert len({key(model) for model in models}) == len(models)


@pytest.mark.parametrize("kind", CLASSES)
def test_equal_models_have_equal_keys_before_and_after_loading(kind: Any, saved: Path) -> None:
    first, second = kind(model=saved, method="pine"), kind(model=saved, method="pine")
    before = key(first)
    first.invoke("Hello", on_missing_documents="ignore", max_tokens=1)
    assert before == key(first) == key(second)


def test_the_cache_answers_for_the_same_call_only(tiny: Any, sent: Any) -> None:
    cache = InMemoryCache()
    model = ChatRagMiddle(model=tiny, cache=cache, max_tokens=4)
    documents = ["Lyon lies on the Rhône.", "Nantes lies on the Loire."]
    calls: list[dict[str, Any]] = [
        {},
        {"documents": documents},
        {"documents": documents[::-1]},
        {"documents": documents, "method": "pine"},
        {"temperature": 1.0, "seed": 1},
        {"stop": ["a"]},
    ]
    answers = [model.invoke("Why?", **call) for call in calls]
    again = [model.invoke("Why?", **call) for call in calls]
    assert [answer.content for answer in again] == [answer.content for answer in answers]
    assert len(sent) == len(calls)
    assert again[1].response_metadata["rag_middle"]["documents"] == 2
    ChatRagMiddle(model=tiny, cache=cache, max_tokens=4, method="ms_poe").invoke("Why?")
    assert len(sent) == len(calls) + 1


@pytest.mark.parametrize("kind", CLASSES)
def test_secrets_of_loading_are_hidden(kind: Any, saved: Path) -> None:
    proxies = {"proxies": {"https": "http://user:hf_SECRET@proxy"}}
    now, older = ({name: "hf_SECRET", **proxies} for name in ("token", "use_auth_token"))
    in_fields = kind(model=saved, model_options=now, tokenizer_options=older)
    for model in (in_fields, kind(model=saved, model_kwargs=older)):
        shown = [repr(model), str(model), str(model.model_dump()), model.model_dump_json()]
        shown += [dumps(model), key(model), str(model._identifying_params)]
        assert "hf_SECRET" not in str(shown)
        assert b"hf_SECRET" not in pickle.dumps(model)
        assert key(model) == key(kind(model=saved))
        assert kind(**{field: getattr(model, field) for field in ("model", "model_options")})


def test_secrets_reach_the_loading_as_they_are(
    tiny: RagMiddleModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments: dict[str, Any] = {}
    monkeypatch.setattr(
        "rag_middle.generation.shared_model", lambda _, **given: arguments.update(given) or tiny
    )
    options = {
        "model_options": {"token": False, "proxies": {"https": "http://user:pw@proxy"}},
        "tokenizer_options": {"token": "hf_other"},
    }
    assert ChatRagMiddle(model="a/b", token="hf_own", **options).rag_middle_model is tiny
    assert arguments.items() >= options.items()


@pytest.mark.parametrize("kind", CLASSES)
def test_pickles_and_copies_keep_the_options_and_no_weights(
    kind: Any, saved: Path, tiny: RagMiddleModel
) -> None:
    model = kind(
        model=saved,
        method="ms_poe",
        method_options={"max_ratio": 2.0},
        temperature=0.5,
        seed=1,
        max_tokens=2,
    )
    answer = model.invoke("Hello")
    pickled = pickle.dumps(model)
    assert len(pickled) < 5000
    assert model.last_report is not None
    assert pickle.loads(pickled).last_report is None
    for again in (pickle.loads(pickled), copy.deepcopy(model)):
        assert key(again) == key(model)
        assert again._method == model._method
        assert again.rag_middle_model.model is model.rag_middle_model.model
        assert getattr(again.invoke("Hello"), "content", None) == getattr(answer, "content", None)
    with pytest.raises(UnsupportedGenerationError, match="model='"):
        pickle.dumps(kind(model=tiny))


@pytest.mark.parametrize("kind", CLASSES)
class TestChangedFields:
    @staticmethod
    def method_of(model: Any) -> str:
        model.generate_prompt([StringPromptValue(text="Hello")])
        return str(model.last_report["method"])

    def test_a_method_that_is_set_runs(self, kind: Any, saved: Path) -> None:
        options = {"model": saved, "max_tokens": 1, "on_missing_documents": "ignore"}
        model = kind(**options, method="positional_hidden_states:vicuna-7b-v1.5-16k")
        model.method = "ms_poe"
        assert self.method_of(model) == "ms_poe"
        model.method_options = {"max_ratio": 2.0}
        stated = kind(**options, method="ms_poe", method_options={"max_ratio": 2.0})
        assert key(model) == key(stated)
        assert dumps(model) == dumps(stated)
        model.method = "siw"
        assert model.method_options is None
        copied = model.model_copy(update={"method": "ms_poe", "method_options": {"max_ratio": 2.0}})
        assert key(copied) == key(stated)
        assert self.method_of(copied) == "ms_poe"
        assert self.method_of(model) == "siw"

    def test_what_cannot_be_set_is_refused_and_changes_nothing(
        self, kind: Any, saved: Path
    ) -> None:
        model = kind(model=saved, method="ms_poe")
        before = key(model)
        with pytest.raises(UnknownNameError, match="'pine'"):
            model.method = "pin"
        with pytest.raises(MethodConfigError):
            model.method_options = {"factors": [1.0]}
        for name in ("model", "token", "context_window"):
            with pytest.raises(UnsupportedGenerationError, match="make another"):
                setattr(model, name, "other")
            with pytest.raises(UnsupportedGenerationError, match="make another"):
                model.model_copy(update={name: "other"})
        with pytest.raises(UnknownNameError, match="'pine'"):
            model.model_copy(update={"method": "pin"})
        assert key(model) == before
        assert (model.method, model.method_options) == ("ms_poe", None)
