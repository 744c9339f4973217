"""Wrong arguments are refused by name before anything runs; an option is served or refused."""

from pathlib import Path
from typing import Any, get_type_hints

import pytest

from rag_middle import ContextPrompt, RagMiddleModel
from rag_middle.errors import (
    MethodConfigError,
    RagMiddleError,
    UnknownNameError,
    UnsupportedGenerationError,
)
from rag_middle.generation import Follower, GenerationKwargs, GenerationOptions
from rag_middle.options import OPTIONS, AskKwargs

ODD: list[Any] = [3, [], object(), [None]]
#: Options, and words of the message.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"temprature": 1}, "no option 'temprature'.*Did you mean 'temperature'"),
    ({"max_batch_size": 1}, "no option 'max_batch_size'.*Options: template"),
    ({"max_new_tokens": 0}, "max_new_tokens must be"),
    ({"top_p": 0.0}, "top_p must be"),
    ({"typical_p": 0}, "typical_p must be.*above 0"),
    ({"num_beams": 2, "temperature": 1.0}, "num_beams"),
    ({"seed": [1, 2], "temperature": 1.0}, "seed must be"),
    ({"stop": ["a", ""]}, "stop must be"),
    ({"template": "jinja"}, "template must be"),
    ({"eos_token_id": [1, 2.5]}, "eos_token_id must be a whole number"),
    ({"top_logprobs": 2}, "needs logprobs"),
    ({"logprobs": True, "num_beams": 2}, "num_beams=1"),
    ({"template_options": {3: 4}}, "template_options must be"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_options_that_make_no_sense(
    model: RagMiddleModel, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedGenerationError, match=message):
        model.generate("Why?", **options)


@pytest.mark.parametrize(
    "call",
    [
        lambda model: model.stream("Why?", num_beams=2),
        lambda model: model.score("Why?", "So.", temperature=1.0),
        lambda model: model.score_batch(["Why?"], ["a", "b"]),
        lambda model: model.batch(["Why?"], max_batch_size=0),
        lambda model: model.batch(["Why?"] * 2, followers=[Follower(on_text=print)]),
        lambda model: model.batch(["Why?"], followers=[Follower(on_text=print)], num_beams=2),
        lambda model: model.count_tokens("fox", system="Be brief."),
        lambda model: model.generate(model.encode("Why?"), system="Be brief."),
        lambda model: model.generate(["one", "two"]),
        lambda model: RagMiddleModel("gpt2", model.tokenizer),
        lambda model: RagMiddleModel.from_pretrained(".", attn_implementation="sdpaa"),
        lambda model: RagMiddleModel.from_pretrained(".", device="abacus"),
        lambda model: RagMiddleModel.from_pretrained(".", device="cpu", device_map="auto"),
    ],
)
def test_calls_that_make_no_sense(
    model: RagMiddleModel, call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RagMiddleError):
        call(model)


@pytest.mark.parametrize("method", [*ODD, "", ("none", 3), lambda: None, "mspoe"])
def test_what_is_no_method(model: RagMiddleModel, method: Any) -> None:
    for call in (
        lambda: model.generate("Why?", method=method),
        lambda: model.encode("Why?", method=method),
        lambda: RagMiddleModel(model.model, model.tokenizer, method=method),
        lambda: RagMiddleModel.from_pretrained("never looked at", method=method),
    ):
        with pytest.raises((MethodConfigError, UnknownNameError)):
            call()


def test_options_of_a_method_need_a_method(model: RagMiddleModel, prompt: ContextPrompt) -> None:
    with pytest.raises(MethodConfigError, match="without a method"):
        model.generate(prompt, method_options={"scale": 2.0})
    for method in (None, "siw"):
        for options in ("x", [1], {3: 1}):
            with pytest.raises(MethodConfigError, match=r"^method_options must be a mapping"):
                model.generate(prompt, method=method, method_options=options)  # type: ignore[arg-type]
    scaled: Any = {"method": "position_interpolation", "method_options": {"scale": 2.0}}
    assert model.generate(prompt, max_new_tokens=1, **scaled).method == "position_interpolation"


def test_the_typed_keywords_are_the_options() -> None:
    declared = {name: declaration.type for name, declaration in OPTIONS.items()}
    assert get_type_hints(GenerationKwargs) == declared == get_type_hints(GenerationOptions)
    declared.pop("top_k")
    assert get_type_hints(AskKwargs) == declared


def test_defaults_are_allowed_and_described() -> None:
    for declaration in OPTIONS.values():
        declaration.check(declaration.default)
        assert declaration.help.endswith(".")
