"""Whether a method acts on a prompt, and proof that it reaches the model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rag_middle.attention import (
    applied,
    in_eval_mode,
    input_device,
    kernels_in_use,
    model_traits,
    turn,
    vocabulary_size,
)
from rag_middle.attention.turns import OfModel
from rag_middle.errors import MethodConfigError, PatchIneffectiveError, PromptError
from rag_middle.layout import PromptLayout
from rag_middle.methods import Method, NoMethod
from rag_middle.notices import MissingDocumentsWarning, NumberedDocumentsWarning, warn_caller
from rag_middle.options import GenerationOptions, Kernels
from rag_middle.tokens import TokenizedPrompt
from rag_middle.wording import shortened

_PREFIX, _DOCUMENTS, _SUFFIX = 4, (5, 7, 6), 4
_REMEMBERED = 64
#: A rank at the start of a document: "[1] ", "Source 1:", "Document [1](Title: ...", "1. ".
_NUMBER = re.compile(r"\W*(?:[^\W\d]+\W{0,2})?(\d{1,3})(?:[\])}:]|\.?\s)")
_BRANCHES = 2
#: What is left of a marker that `mark` wrote when a filter or a splitter has been at it.
_BROKEN_MARKER = re.compile(r"rm(?::|%3a)doc(?::|%3a)[0-9a-f]", re.IGNORECASE)

#: Methods that moved a model's logits already, and on which kernels. Tuples are replaced, never
#: changed: reading one needs no lock.
_effective: OfModel[tuple[tuple[Method, Kernels], ...]] = OfModel()


def acts_on(method: Method, layout: PromptLayout) -> bool:
    """Whether the method can change what the model makes of this prompt."""
    return any(
        not part.is_neutral and bool(layout.documents or not part.needs_documents)
        for part in method.parts
    )


def lacking_documents(method: Method, layout: PromptLayout) -> list[str]:
    """Names of the method's parts that need documents, where the prompt has none."""
    if layout.documents:
        return []
    return [part.name for part in method.parts if part.needs_documents and not part.is_neutral]


def check_documents(
    method: Method,
    layout: PromptLayout,
    options: GenerationOptions,
    example: int = 0,
    *,
    prompt: object = None,
) -> None:
    """Speak up where a method needs documents and the prompt has none, every time.

    Args:
        method: what the request runs under.
        layout: of the prompt.
        options: what to do, and what to advise.
        example: 0-based index in the batch, for the message.
        prompt: what was asked; the message shows its beginning, of messages that of the last one.

    Raises:
        PromptError: there are none, and `on_missing_documents` is ``"error"``.
    """
    lost = lacking_documents(method, layout)
    if options.on_missing_documents == "ignore" or not lost:
        return
    text = _text(prompt)
    broken = " Its document markers were cut or changed after mark() had written them."
    message = (
        f"{' and '.join(lost)} needs documents, and prompt {example}{_beginning(text)} has none "
        f"that it can tell: nothing is changed.{broken if _BROKEN_MARKER.search(text) else ''} "
        f"{options.missing_documents_hint} on_missing_documents='ignore' (--on-missing-documents "
        "ignore) says that this is meant."
    )
    if options.on_missing_documents == "error":
        raise PromptError(message)
    warn_caller(MissingDocumentsWarning(message), every_time=True)


def _text(prompt: object) -> str:
    """What was asked, of messages the last one; nothing of a prompt in tokens."""
    if isinstance(prompt, list | tuple) and prompt and isinstance(prompt[-1], Mapping):
        prompt = prompt[-1].get("content")
    text = prompt if isinstance(prompt, str) else getattr(prompt, "text", None)
    return text if isinstance(text, str) else ""


def _beginning(text: str) -> str:
    """The first words of a prompt, for a message about it."""
    return f" ({shortened(' '.join(text.split()), 60)!r})" if text else ""


def check_numbers(method: Method, starts: Sequence[str]) -> None:
    """Warn where the order comes back through numbers in documents, under an order-free method.

    Args:
        method: what the request runs under.
        starts: how each document of the prompt begins, in order.
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
    neutral parameters have nothing to show and pass, and so do methods that act around the model
    and not in it (reordering documents).

    Raises:
        PatchIneffectiveError: the logits are the same.
        UnsupportedArchitectureError: this model cannot take this method.
        MethodConfigError: parameters that do not fit this model, or under which its logits are no
            finite numbers.
    """
    with_kernels = (method, kernels_in_use())
    if method.is_neutral or with_kernels in (_effective.get(model) or ()):
        return
    if (method.rewrites or method.arranges or method.combines) and not _plans(model, method):
        return
    with turn(model):
        shown = method.for_self_check()
        with in_eval_mode(model):
            # A method may leave one short prompt alone, and rightly so: ask about longer ones.
            changes = any(_changes(model, tokenizer, shown, longer) for longer in (1, 4, 16))
        if not changes:
            raise PatchIneffectiveError(
                f"{method!r} leaves the logits of this {model.config.model_type} model exactly as "
                "they are. Either its parameters reach no layer of this model, or this version of "
                "transformers goes around it: run `rag-middle verify` to tell. self_check=False "
                "skips this test."
            )
        _effective.put(model, (with_kernels, *(_effective.get(model) or ()))[:_REMEMBERED])


def check_finite(method: Method, changed: Tensor, base: Tensor) -> None:
    """Refuse parameters under which logits `changed` are NaN or infinite where `base` are finite.

    Greedy decoding would go on with token 0 and say nothing. Each parameter may be a finite number
    and still leave the range of the model's number format: only the model's logits tell.
    """
    if bool((base.isfinite() & ~changed.isfinite()).any()):
        raise MethodConfigError(
            f"{method!r} makes the logits of this model NaN or infinite. A parameter is too large "
            "or too close to 0 for the model's number format: choose a less extreme one."
        )


def _plans(model: PreTrainedModel, method: Method) -> bool:
    """Whether the method asks anything of the model's layers."""
    prompt = _prompt(range(_PREFIX + sum(_DOCUMENTS) + _SUFFIX), _DOCUMENTS)
    return bool(method.for_self_check().plan((prompt,) * _BRANCHES, model_traits(model)).layers)


def _changes(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, method: Method, longer: int
) -> bool:
    """Whether the method moves the logits of a prompt with documents `longer` times as long."""
    lengths = tuple(longer * length for length in _DOCUMENTS)
    tokens = _PREFIX + sum(lengths) + _SUFFIX
    window = model_traits(model).context_window
    if longer > 1 and window is not None and tokens > window:
        return False
    prompt = _prompt(_random_tokens(model, tokenizer, tokens), lengths)
    # Of a method that combines, some branch may well be the unmodified model.
    prompts = [prompt] * (_BRANCHES if method.combines else 1)
    changed, base = _logits(model, method, prompts), _logits(model, NoMethod(), prompts)
    check_finite(method, changed, base)
    return not torch.equal(changed, base)


def _prompt(ids: Sequence[int], lengths: tuple[int, ...]) -> TokenizedPrompt:
    """A prompt of documents that differ in everything that a method may go by."""
    starts = [*accumulate(lengths, initial=_PREFIX)]
    return TokenizedPrompt.assembled(
        prefix=ids[:_PREFIX],
        documents=[ids[start:end] for start, end in pairwise(starts)],
        suffix=ids[starts[-1] :],
        document_ids=[str(index) for index in range(len(lengths))],
        scores=[1 / (1 + index) for index in range(len(lengths))],
    )


def _random_tokens(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, length: int
) -> list[int]:
    """Ordinary tokens: special ones may be placeholders for images, say."""
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    rows = min(vocabulary_size(model), tokenizer.vocab_size)
    ordinary = [token for token in range(rows) if token not in special] or list(range(rows))
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(len(ordinary), (length,), generator=generator, device="cpu")
    return [ordinary[index] for index in chosen.tolist()]


@torch.no_grad()
def _logits(model: PreTrainedModel, method: Method, prompts: list[TokenizedPrompt]) -> Tensor:
    with applied(model, method, prompts, prepared=True):
        ids = torch.tensor([prompt.input_ids for prompt in prompts], device=input_device(model))
        logits: Tensor = model(input_ids=ids, use_cache=False).logits
    return logits
