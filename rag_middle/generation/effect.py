"""Whether a method acts on a prompt, and proof that it reaches the model."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rag_middle.attention import (
    applied,
    in_eval_mode,
    input_device,
    kernels_in_use,
    locked,
    model_traits,
    vocabulary_size,
)
from rag_middle.attention.locks import OfModel
from rag_middle.errors import PatchIneffectiveError, PromptError
from rag_middle.generation.processors import refuse_not_finite
from rag_middle.layout import PromptLayout
from rag_middle.methods import Method, NoMethod
from rag_middle.notices import MissingDocumentsWarning, NumberedDocumentsWarning, warn_caller
from rag_middle.options import GenerationOptions, Kernels
from rag_middle.tokens import TokenizedPrompt

_PREFIX, _DOCUMENTS, _SUFFIX = 4, (5, 7, 6), 4
_REMEMBERED = 64
#: A rank at the start of a document: "[1] ", "Source 1:", "Document [1](Title: ...", "1. ".
_NUMBER = re.compile(r"\W*(?:[^\W\d]+\W{0,2})?(\d{1,3})(?:[\])}:]|\.?\s)")
_BRANCHES = 2

#: Methods that moved a model's logits already, and on which kernels. Tuples are replaced, never
#: changed: reading one needs no lock.
_effective: OfModel[tuple[tuple[Method, Kernels], ...]] = OfModel()


def acts_on(method: Method, layout: PromptLayout) -> bool:
    """Whether the method can change what the model makes of this prompt."""
    return any(
        not part.is_neutral and bool(layout.documents or not part.needs_documents)
        for part in method.parts
    )


def check_documents(
    method: Method,
    layout: PromptLayout,
    options: GenerationOptions,
    example: int = 0,
    dropped: int = 0,
) -> None:
    """Speak up where prompt `example`, from 0, lacks documents: needed ones, or all were `dropped`.

    Raises:
        PromptError: there are none, and `on_missing_documents` is ``"error"``.
    """
    lost = [part.name for part in method.parts if part.needs_documents and not part.is_neutral]
    if options.on_missing_documents == "ignore" or layout.documents or not (lost or dropped):
        return
    message = (
        f"{' and '.join(lost)} needs documents, and prompt {example} has none that it can tell: "
        f"nothing is changed. {options.missing_documents_hint}"
    )
    if dropped:
        message = (
            f"None of the {dropped} documents of prompt {example} fits beside the rest and "
            f"{options.max_new_tokens} new tokens: pass shorter ones, or lower max_new_tokens."
        )
    message += (
        " on_missing_documents='ignore' (--on-missing-documents ignore) says that this is meant."
    )
    if options.on_missing_documents == "error":
        raise PromptError(message)
    warn_caller(MissingDocumentsWarning(message))


def check_numbers(method: Method, starts: Sequence[str]) -> None:
    """Warn where the order comes back through numbers in documents, under an order-free method.

    `starts` are the beginnings of the prompt's documents, in order.
    """
    numbers = [int(match[1]) if (match := _NUMBER.match(start)) else None for start in starts]
    if len(starts) < 2 or numbers not in ([*range(len(starts))], [*range(1, len(starts) + 1)]):
        return
    free = " and ".join(part.name for part in method.parts if part.order_free)
    warn_caller(
        NumberedDocumentsWarning(
            # Nothing of the documents: a server logs this.
            f"Under {free} the order of documents makes no difference, and these say theirs: they "
            f"are numbered from {numbers[0]} to {numbers[-1]}, so another order is another prompt. "
            "Name a document by its title or id instead of its rank."
        )
    )


def check_effect(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, method: Method
) -> None:
    """Run the model on a short random prompt with and without the method and compare.

    Two forward passes over 26 tokens, rarely more; remembered per model and method. Methods with
    neutral parameters have nothing to show and pass, and so do methods that act on prompts or
    logits and not in the model (reordering documents).

    Raises:
        PatchIneffectiveError: the logits are the same.
        UnsupportedArchitectureError: this model cannot take this method.
        MethodConfigError: parameters that do not fit this model, or under which its logits are no
            finite numbers.
    """
    checked = (method, kernels_in_use())
    if method.is_neutral or checked in (_effective.get(model) or ()):
        return
    shown = method.for_self_check()
    acts_outside = method.rewrites or method.arranges or method.combines
    traits, rows = model_traits(model), _BRANCHES if method.combines else 1
    if acts_outside and not shown.plan((_prompt(model, tokenizer, 1),) * _BRANCHES, traits).layers:
        return
    with locked(model), in_eval_mode(model):
        for longer in (1, 4, 16):  # a method may leave one short prompt alone, and rightly so
            prompts = [_prompt(model, tokenizer, longer)] * rows
            if longer > 1 and len(prompts[0]) > (traits.context_window or math.inf):
                continue
            changed, base = _logits(model, shown, prompts), _logits(model, NoMethod(), prompts)
            # Finite parameters may leave the range of the number format: only logits tell.
            if bool((base.isfinite() & ~changed.isfinite()).any()):
                refuse_not_finite(shown)
            if not torch.equal(changed, base):
                break
        else:
            raise PatchIneffectiveError(
                f"{method!r} leaves the logits of this {model.config.model_type} model exactly as "
                "they are. Either its parameters reach no layer of this model, or this version of "
                "transformers bypasses it: run `rag-middle verify` to tell. self_check=False "
                "skips this test."
            )
    _effective.put(model, (checked, *(_effective.get(model) or ()))[:_REMEMBERED])


def _prompt(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, longer: int
) -> TokenizedPrompt:
    """A prompt of ordinary tokens at random, its documents `longer` times as long.

    Special tokens may be placeholders for images, say. The documents differ in everything that a
    method may go by.
    """
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    rows = range(min(vocabulary_size(model), tokenizer.vocab_size))
    ordinary = [token for token in rows if token not in special] or rows
    drawn = Random(0)
    prefix, *documents, suffix = (
        [drawn.choice(ordinary) for _ in range(length)]
        for length in (_PREFIX, *(longer * length for length in _DOCUMENTS), _SUFFIX)
    )
    return TokenizedPrompt.assembled(
        prefix=prefix,
        documents=documents,
        suffix=suffix,
        document_ids=[str(index) for index in range(len(documents))],
        scores=[1 / (1 + index) for index in range(len(documents))],
    )


@torch.no_grad()
def _logits(model: PreTrainedModel, method: Method, prompts: list[TokenizedPrompt]) -> Tensor:
    with applied(model, method, prompts, prepared=True):
        ids = torch.tensor([prompt.input_ids for prompt in prompts], device=input_device(model))
        logits: Tensor = model(input_ids=ids, use_cache=False).logits
    return logits
