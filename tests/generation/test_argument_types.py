"""Arguments of the wrong type are refused by name, wherever they are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rag_middle
from rag_middle import RagMiddleModel
from rag_middle.errors import MethodConfigError, UnsupportedGenerationError
from rag_middle.tokens import encode
from tests.tokenizers import byte_level_bpe

ODD: list[Any] = [3, [], object(), b"x", {}, True, [None]]


@pytest.mark.parametrize("method", [*ODD, "", ("none", 3), lambda: None])
def test_a_method_of_another_type_is_refused_by_every_call(
    model: RagMiddleModel, method: Any
) -> None:
    calls = (
        lambda: model.generate("Why?", method=method),
        lambda: model.batch(["Why?"], method=method),
        lambda: model.stream("Why?", method=method),
        lambda: model.score("Why?", " So", method=method),
        lambda: model.encode("Why?", method=method),
        lambda: RagMiddleModel(model.model, model.tokenizer, method=method),
        lambda: RagMiddleModel.from_pretrained("never looked at", method=method),
        lambda: rag_middle.install(model.model, method),
    )
    for call in calls:
        with pytest.raises((MethodConfigError, rag_middle.UnknownNameError)):
            call()


def test_installing_no_method_says_what_one_is(model: RagMiddleModel) -> None:
    nothing: Any = None
    with pytest.raises(MethodConfigError, match=r"^method must be a name .* got None"):
        rag_middle.install(model.model, nothing)


@pytest.mark.parametrize("options", ["x", 3, object(), [1], {3: 1, "a": 2}, b"x"])
@pytest.mark.parametrize("method", [None, "siw"])
def test_method_options_of_another_type_are_refused(
    model: RagMiddleModel, options: Any, method: str | None
) -> None:
    for call in (model.generate, model.stream):
        with pytest.raises(MethodConfigError, match=r"^method_options must be a mapping"):
            call("Why?", method=method, method_options=options)
    with pytest.raises(MethodConfigError, match=r"^method_options must be a mapping"):
        RagMiddleModel.from_pretrained("never looked at", method="siw", method_options=options)


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("template_options", ["x", 3, [1], {3: 4}, True, object()]),
        ("system", ODD),
        ("cancel", ["x", *ODD]),
        ("allow_control_tokens", ["x", 1, None]),
    ],
)
def test_options_of_another_type_are_refused(
    model: RagMiddleModel, name: str, refused: list[Any]
) -> None:
    for value in refused:
        with pytest.raises(UnsupportedGenerationError, match=f"^{name} must be"):
            model.batch(["Why?"], **{name: value})


def test_names_of_our_own_functions_are_free_for_templates() -> None:
    tokenizer = byte_level_bpe(chat_template="{{ messages[0]['content'] }}")
    options = dict.fromkeys(("tokenizer", "encoder"), "for the template")
    plain = encode(tokenizer, "Why?", template="chat")
    assert encode(tokenizer, "Why?", template="chat", template_options=options) == plain


@pytest.mark.parametrize("value", ODD)
def test_what_is_no_model_tokenizer_or_cache_is_refused(model: RagMiddleModel, value: Any) -> None:
    with pytest.raises(UnsupportedGenerationError, match=r"^model must be a loaded"):
        RagMiddleModel(value, model.tokenizer)
    with pytest.raises(UnsupportedGenerationError, match=r"^tokenizer must be a loaded"):
        RagMiddleModel(model.model, value)
    with pytest.raises(UnsupportedGenerationError, match=r"^document_cache must be"):
        RagMiddleModel(model.model, model.tokenizer, document_cache=value)


@pytest.mark.parametrize("value", [3, object(), "x", [1]])
def test_loading_refuses_other_types_before_it_looks_for_files(tmp_path: Path, value: Any) -> None:
    for name in ("model_options", "tokenizer_options", "attn_implementation", "device"):
        if name == "device" and isinstance(value, int):
            continue  # the number of a GPU
        with pytest.raises(UnsupportedGenerationError, match=name):
            RagMiddleModel.from_pretrained(tmp_path, **{name: value})


@pytest.mark.parametrize("value", [3, None, 1.5, [None], object()])
def test_continuations_are_text_or_ids(model: RagMiddleModel, value: Any) -> None:
    with pytest.raises(UnsupportedGenerationError, match=r"^continuation must be"):
        model.score("Why?", value)
    with pytest.raises(UnsupportedGenerationError, match=r"^continuations must be a list"):
        model.score_batch(["Why?"], 3)  # type: ignore[arg-type]


def test_a_message_quotes_the_beginning_of_a_value_only(model: RagMiddleModel) -> None:
    """Where a prompt was passed in the place of something else, it must not fill the logs."""
    prompt = " ".join(f"word{index}" for index in range(400))
    blocks = [{"type": "text", "text": prompt}]
    names = ("system", "template", "template_options", "stop", "seed", "on_overflow", "cancel")
    calls: list[dict[str, Any]] = [
        *({name: blocks} for name in (*names, "tools", "tool_choice", "response_format")),
        {"max_new_tokens": prompt},
        {"tool_choice": prompt},
        {"response_format": {"type": prompt}},
    ]
    for options in calls:
        with pytest.raises(UnsupportedGenerationError) as raised:
            model.generate("Why?", **options)
        assert "word30 " not in str(raised.value), options.keys()
