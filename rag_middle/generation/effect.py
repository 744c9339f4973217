"""Whether a method acts on a prompt, and proof that it reaches the model."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rag_middle.attention import applied, model_traits
from rag_middle.errors import PatchIneffectiveError, PromptError
from rag_middle.generation.facts import device_of, vocabulary_size
from rag_middle.generation.notices import MissingDocumentsWarning, warn_caller
from rag_middle.generation.turns import in_eval_mode, turn
from rag_middle.layout import PromptLayout
from rag_middle.methods import Compose, FromProfile, Method, NoMethod

__all__ = ["acts_on", "check_documents", "check_effect", "method_name"]

_PREFIX, _DOCUMENTS, _SUFFIX = 4, (5, 7, 6), 4
_REMEMBERED = 64
_BRANCHES = 2

#: Methods that moved a model's logits already. Tuples are replaced, never changed: reading one
#: needs no lock.
_effective: WeakKeyDictionary[PreTrainedModel, tuple[Method, ...]] = WeakKeyDictionary()


def method_name(method: Method) -> str:
    """The name that chooses it: ``lpes``, ``lpes:reader``, ``profile:PATH``, ``lpes+siw``.

    It does not tell options that were set by hand.
    """
    if isinstance(method, Compose):
        return "+".join(method_name(part) for part in method.methods)
    return method.source if isinstance(method, FromProfile) else method.name


def acts_on(method: Method, layout: PromptLayout) -> bool:
    """Whether the method can change what the model makes of this prompt."""
    return any(
        not part.is_neutral and bool(layout.documents or not part.needs_documents)
        for part in method.parts
    )


def check_documents(method: Method, layout: PromptLayout, policy: str, example: int = 0) -> None:
    """Speak up where a method needs documents and the prompt has none.

    Args:
        method: what the request runs under.
        layout: of the prompt.
        policy: ``"warn"``, ``"error"`` or ``"ignore"``.
        example: 0-based index in the batch, for the message.

    Raises:
        PromptError: there are none, and the policy is ``"error"``.
    """
    lost = [p.name for p in method.parts if p.needs_documents and not p.is_neutral]
    if policy == "ignore" or layout.documents or not lost:
        return
    message = (
        f"{' and '.join(lost)} needs documents, and prompt {example} has none that it can tell: "
        "nothing is changed. Pass a ContextPrompt, or wrap each document in mark(); "
        "on_missing_documents='ignore' says that this is meant."
    )
    if policy == "error":
        raise PromptError(message)
    warn_caller(message, MissingDocumentsWarning)


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
        MethodConfigError: parameters that do not fit this model.
    """
    if method.is_neutral or method in _effective.get(model, ()):
        return
    if (method.arranges or method.combines) and not _plans(model, method):
        return
    with turn(model):
        shown = method.on_short_prompts
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
        _effective[model] = (method, *_effective.get(model, ()))[:_REMEMBERED]


def _plans(model: PreTrainedModel, method: Method) -> bool:
    """Whether the method asks anything of the model's layers."""
    layouts = (_layout(_document_lengths(method)),) * _BRANCHES
    return bool(method.plan(layouts, model_traits(model)).layers)


def _changes(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, method: Method, longer: int
) -> bool:
    """Whether the method moves the logits of a prompt with documents `longer` times as long."""
    layout = _layout(tuple(longer * length for length in _document_lengths(method)))
    window = model_traits(model).context_window
    if longer > 1 and window is not None and layout.length > window:
        return False
    tokens = _random_tokens(model, tokenizer, layout.length)
    # Of a method that combines, some branch may well be the unmodified model.
    layouts = [layout] * (_BRANCHES if method.combines else 1)
    changed = _logits(model, method, layouts, tokens)
    return not torch.equal(changed, _logits(model, NoMethod(), layouts, tokens))


def _document_lengths(method: Method) -> tuple[int, ...]:
    """Tokens of each document; as many documents as the method has numbers for."""
    for part in method.parts:
        if part.documents_expected is not None:
            count = part.documents_expected
            return tuple(_DOCUMENTS[index % len(_DOCUMENTS)] for index in range(count))
    return _DOCUMENTS


def _layout(lengths: tuple[int, ...]) -> PromptLayout:
    spans, start = [], _PREFIX
    for length in lengths:
        spans.append((start, start + length))
        start += length
    return PromptLayout(length=start + _SUFFIX, documents=tuple(spans))


def _random_tokens(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, length: int
) -> Tensor:
    """Ordinary tokens `[1, n]`: special ones may be placeholders for images, say."""
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    rows = min(vocabulary_size(model), tokenizer.vocab_size)
    ordinary = [token for token in range(rows) if token not in special] or list(range(rows))
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(len(ordinary), (1, length), generator=generator)
    return torch.tensor(ordinary)[chosen].to(device_of(model))


@torch.no_grad()
def _logits(
    model: PreTrainedModel, method: Method, layouts: list[PromptLayout], tokens: Tensor
) -> Tensor:
    with applied(model, method, layouts):
        ids = tokens.expand(len(layouts), -1)
        logits: Tensor = model(input_ids=ids, use_cache=False).logits
    return logits
