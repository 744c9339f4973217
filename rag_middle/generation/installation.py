"""A method installed for good, for whatever runs the model without this package."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rag_middle.attention import (
    Rotation,
    in_eval_mode,
    input_device,
    model_lock,
    model_traits,
    modules_by_layer,
    vocabulary_size,
)
from rag_middle.attention.installed import install_rotations
from rag_middle.errors import PatchIneffectiveError
from rag_middle.generation.effect import check_finite
from rag_middle.generation.prompts import MethodLike
from rag_middle.methods import layer_rotations, resolve_method

_PROBE_TOKENS = 64


class Installation:
    """A method on a model, until `undo`; as a context manager, until the end of its block."""

    def __init__(self, model: PreTrainedModel, rotations: ExitStack) -> None:
        self._model = model
        self._rotations = rotations

    def undo(self) -> None:
        """Make the model what it was, once no request runs on it; again does nothing."""
        with model_lock(self._model):
            self._rotations.close()

    def __enter__(self) -> Installation:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def install(model: PreTrainedModel, method: MethodLike) -> Installation:
    """Make a model run under a method wherever it is used: `pipeline`, `transformers serve`,
    `generate_batch`, assisted decoding, in any thread.

    For methods that are nothing but rotary tables, the same for every prompt: LPES, position
    interpolation, Attention Buckets with a single base. The others look at each prompt and need
    `RagMiddleModel`. While a method is installed, `RagMiddleModel` on the same model refuses others
    that change attention.

    Args:
        model: a Hugging Face causal language model, not compiled.
        method: a name with a profile or preset (``"profile:PATH"``), or a method object.

    Returns:
        Undoes it.

    Raises:
        MethodConfigError: the method is more than rotary tables, does not fit the model, makes its
            logits NaN or infinite, was calibrated for a model of another shape, or another one is
            installed.
        UnsupportedArchitectureError: the model cannot take it.
        PatchIneffectiveError: the model's logits are what they were.
    """
    chosen = resolve_method(method)
    traits = model_traits(model)
    rotations = {
        index: rotation
        for index, rotation in layer_rotations(chosen, traits).items()
        if rotation != Rotation()
    }
    with model_lock(model):
        modules = modules_by_layer(model, traits)
        before = _logits(model)
        installation = Installation(model, install_rotations(model, traits, modules, rotations))
        try:
            after = _logits(model)
            check_finite(chosen, after, before)
            if rotations and torch.equal(before, after):
                raise PatchIneffectiveError(
                    f"{chosen!r} leaves the logits of this {traits.model_type} model exactly as "
                    "they are: this version of transformers bypasses its hooks. Run "
                    "`rag-middle verify` to check the installation."
                )
        except BaseException:
            installation.undo()
            raise
    return installation


@torch.no_grad()
def _logits(model: PreTrainedModel) -> Tensor:
    tokens = torch.arange(_PROBE_TOKENS, device=input_device(model)) % vocabulary_size(model)
    with in_eval_mode(model):
        logits: Tensor = model(input_ids=tokens[None], use_cache=False).logits
    return logits
