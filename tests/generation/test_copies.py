"""A copy of a model is a model of its own: no method comes along, and none is left on it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from rag_middle import ContextPrompt, RagMiddleModel, applied
from rag_middle.errors import MethodConfigError
from rag_middle.layout import PromptLayout
from rag_middle.methods import PositionInterpolation
from rag_middle.methods.document_blocks.document_cache import DocumentCache
from tests.families import FAMILIES
from tests.prompts import laid_out

METHOD = PositionInterpolation(scale=2)
COPYING = (copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)))


@pytest.mark.parametrize("copied", COPYING, ids=("deepcopy", "pickle"))
def test_a_model_under_a_method_is_not_copied(copied: Callable[[Any], Any]) -> None:
    model = FAMILIES["llama"].build()
    with applied(model, METHOD, [laid_out(PromptLayout(length=4))]), torch.no_grad():
        model(torch.arange(1, 5)[None])
        with pytest.raises(MethodConfigError, match=r"copied or pickled .* Leave the applied"):
            copied(model)
    assert not _hooks(copied(model))


@pytest.mark.parametrize("copied", COPYING, ids=("deepcopy", "pickle"))
def test_a_copy_of_the_whole_answers_alike(
    model: RagMiddleModel, prompt: ContextPrompt, copied: Callable[[Any], Any]
) -> None:
    original = RagMiddleModel(
        model.model, model.tokenizer, method="ape", document_cache=DocumentCache()
    )
    expected = original.generate(prompt, max_new_tokens=4)
    other = copied(original)
    assert other.model is not original.model
    assert other.generate(prompt, max_new_tokens=4).token_ids == expected.token_ids
    assert other.method == original.method


def _hooks(model: PreTrainedModel) -> list[Any]:
    return [
        hook
        for module in model.modules()
        for hooks in (module._forward_hooks, module._forward_pre_hooks)
        for hook in hooks.values()
    ]
