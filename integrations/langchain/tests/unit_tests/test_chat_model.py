"""ChatRagMiddle: construction, options, documents, limits."""

from pathlib import Path
from typing import Any

import pytest

from langchain_rag_middle import ChatRagMiddle, IgnoredArgumentWarning
from rag_middle import (
    ContextOverflowError,
    MethodConfigError,
    ModelNotFoundError,
    RagMiddleModel,
    UnknownNameError,
    UnsupportedGenerationError,
)
from rag_middle.methods import PINE, MsPoE


def chat(model: Any, **settings: Any) -> ChatRagMiddle:
    return ChatRagMiddle(model=model, **{"max_tokens": 8, **settings})


def reference(model: RagMiddleModel, text: str = "Hello", **options: Any) -> str:
    generation = model.generate(
        [{"role": "user", "content": text}], **{"max_new_tokens": 8, **options}
    )
    return generation.text


class TestConstruction:
    def test_from_a_folder_by_name_or_path(self, saved: Path, tiny: Any) -> None:
        expected = reference(tiny)  # the same weights
        assert chat(str(saved)).invoke("Hello").content == expected
        assert chat(saved).invoke("Hello").content == expected

    @pytest.mark.parametrize(
        ("settings", "error", "message"),
        [
            ({"method": "pime"}, UnknownNameError, "Did you mean 'pine'"),
            ({"temperature": 1, "num_beams": 2}, UnsupportedGenerationError, "use one of them"),
            ({"dtype": "float32"}, UnsupportedGenerationError, "dtype would say how to load"),
        ],
    )
    def test_mistakes_are_refused_at_once_and_by_type(
        self, tiny: Any, settings: dict[str, Any], error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            chat(tiny, **settings)

    def test_a_network_without_its_tokenizer_is_refused(self, tiny: Any) -> None:
        with pytest.raises(UnsupportedGenerationError, match="needs its tokenizer"):
            chat(tiny.model)

    def test_a_path_that_is_not_there_is_refused_at_once(self, tmp_path: Path) -> None:
        with pytest.raises(ModelNotFoundError, match="no such directory"):
            chat(tmp_path / "nothing")

    def test_what_only_services_need_is_named_at_the_callers_line(self, tiny: Any) -> None:
        with pytest.warns(IgnoredArgumentWarning, match="in this process") as warned:
            chat(tiny, max_retries=3)
        assert {warning.filename for warning in warned} == {__file__}

    def test_unknown_options_are_refused_with_the_nearest_one(self, tiny: Any) -> None:
        options: dict[str, Any] = {"temprature": 0.5}
        for call in (lambda: chat(tiny, **options), lambda: chat(tiny).invoke("Hello", **options)):
            with pytest.raises(UnsupportedGenerationError, match="Did you mean 'temperature'"):
                call()
        assert chat(tiny, max_tokens=1).invoke("Hello", n=1, logprobs=None).content is not None


class TestOptions:
    def test_those_of_a_call_go_before_those_of_the_model(self, tiny: Any, sent: Any) -> None:
        model = chat(tiny, temperature=0.0, stop=["zzz"])
        model.invoke("Hello", temperature=0.7, seed=5, max_tokens=3, top_p=0.9, stop=["yyy"])
        model.invoke("Hello", temperature=None)
        first, second = (prompt.options for prompt in sent)
        assert (first["temperature"], first["seed"], first["max_new_tokens"]) == (0.7, 5, 3)
        assert (first["top_p"], first["stop"]) == (0.9, ["yyy"])
        assert (second["temperature"], second["stop"]) == (0.0, ["zzz"])

    def test_a_method_can_come_with_the_call(self, tiny: Any, sent: Any) -> None:
        model = chat(tiny)
        answer = model.invoke("Why?", documents=["a", "b"], method="pine")
        assert answer.response_metadata["rag_middle"]["method"] == "pine"
        assert sent[-1].options["method"] == PINE()
        bound = model.bind(method="ms_poe", method_options={"max_ratio": 2.0})
        bound.invoke("Why?")
        assert sent[-1].options["method"] == MsPoE(max_ratio=2.0)
        assert model.invoke("Why?").response_metadata["rag_middle"]["method"] == "none"
        with pytest.raises(MethodConfigError, match="without a method"):
            model.invoke("Why?", method_options={"max_ratio": 2.0})


def test_a_prompt_that_does_not_fit_is_refused_with_the_counts(make_model: Any) -> None:
    model = chat(make_model(context_window=40))
    with pytest.raises(ContextOverflowError, match="context window of 40") as raised:
        model.invoke("A river flows. " * 20)
    assert raised.value.max_new_tokens == 8
    for call in (lambda text: next(model.stream(text)), lambda text: model.batch([text])):
        with pytest.raises(ContextOverflowError, match="lower max_new_tokens, or"):
            call("A river flows. " * 20)
    with pytest.raises(UnsupportedGenerationError, match=r"^max_new_tokens must be"):
        chat(make_model(context_window=40), max_tokens=0)


def test_the_profile_says_what_is_known_without_loading(tiny: Any) -> None:
    loaded, named = (chat(model).profile or {} for model in (tiny, "nobody/knows-this-model"))
    assert loaded["max_input_tokens"] == 4096
    assert loaded["tool_calling"] is False  # its template shows none
    assert loaded["structured_output"] is True
    assert not {"tool_calling", "max_input_tokens"} & named.keys()
    stated = chat("nobody/knows-this-model", context_window=100).profile
    assert stated is not None
    assert stated["max_input_tokens"] == 100
