"""Options are served or refused, never ignored."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest

from rag_middle import ContextPrompt
from rag_middle.errors import MethodConfigError, UnknownNameError, UnsupportedGenerationError
from rag_middle.generation import GenerationKwargs, GenerationOptions, RagMiddleModel
from rag_middle.options import OPTIONS, AskKwargs


def test_the_typed_keywords_are_the_options() -> None:
    declared = {name: declaration.type for name, declaration in OPTIONS.items()}
    assert get_type_hints(GenerationKwargs) == declared == get_type_hints(GenerationOptions)
    declared.pop("top_k")
    assert get_type_hints(AskKwargs) == declared


def test_defaults_are_allowed_and_described() -> None:
    for declaration in OPTIONS.values():
        declaration.check(declaration.default)
        assert declaration.help.endswith(".")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("temprature", "Did you mean 'temperature'"),
        ("max_tokens", "Did you mean 'max_new_tokens'"),
        ("streamer", "Options: template"),
        ("max_batch_size", "Options: template"),
    ],
)
def test_unknown_options_are_refused_with_the_nearest_one(
    model: RagMiddleModel, name: str, hint: str
) -> None:
    unknown: Any = {name: 1}
    with pytest.raises(UnsupportedGenerationError, match=f"no option '{name}'") as raised:
        model.generate("Why?", **unknown)
    assert hint in str(raised.value)
    with pytest.raises(UnsupportedGenerationError):
        model.stream("Why?", **unknown)


def test_scoring_takes_no_sampling_options(model: RagMiddleModel) -> None:
    with pytest.raises(UnsupportedGenerationError, match="no option 'temperature'"):
        model.score("Why?", "So.", temperature=1.0)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 0},
        {"max_new_tokens": 2.5},
        {"max_new_tokens": True},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": "hot"},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_k": -1},
        {"repetition_penalty": 0},
        {"num_beams": 0},
        {"seed": 1.5, "temperature": 1.0},
        {"seed": [1, 2], "temperature": 1.0},
        {"seed": "1"},
        {"stop": ""},
        {"stop": ["a", ""]},
        {"stop": [3]},
        {"stop": None},
        {"num_beams": 2, "temperature": 1.0},
        {"on_overflow": "cut"},
        {"on_missing_documents": "maybe"},
        {"template": "jinja"},
        {"num_beams": 1025},
        {"missing_documents_hint": 3},
    ],
    ids=str,
)
def test_values_that_make_no_sense_are_refused(
    model: RagMiddleModel, options: dict[str, Any]
) -> None:
    with pytest.raises(UnsupportedGenerationError, match=next(iter(options))):
        model.generate("Why?", **options)


def test_beams_cannot_be_streamed(model: RagMiddleModel) -> None:
    with pytest.raises(UnsupportedGenerationError, match="use generate"):
        model.stream("Why?", num_beams=2)


def test_options_of_a_method_need_a_method(model: RagMiddleModel, prompt: ContextPrompt) -> None:
    with pytest.raises(MethodConfigError, match="without a method"):
        model.generate(prompt, method_options={"scale": 2.0})
    with pytest.raises(UnknownNameError, match="ms_poe"):
        model.generate(prompt, method="mspoe")
    generation = model.generate(
        prompt, method="position_interpolation", method_options={"scale": 2.0}, max_new_tokens=1
    )
    assert generation.method == "position_interpolation"


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_batch_sizes_are_whole_and_positive(model: RagMiddleModel, size: Any) -> None:
    with pytest.raises(UnsupportedGenerationError, match="max_batch_size"):
        model.batch(["Why?"], max_batch_size=size)


def test_top_p_without_drawing_is_harmless(model: RagMiddleModel) -> None:
    plain = model.generate("Why?", max_new_tokens=4)
    assert model.generate("Why?", max_new_tokens=4, top_p=0.9, top_k=5).text == plain.text
    assert plain.seed is None
