"""Run models the ways the contract compares: at once, by steps, in a batch, in a thread."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rag_middle.attention import applied, model_lock
from rag_middle.methods import Method
from tests.contract.cases import LONG, SHORT, Prompt

__all__ = [
    "assert_cached_equals_recomputed",
    "assert_refused",
    "assert_rows_equal_prompts_alone",
    "at_once",
    "distance",
    "generated",
    "generated_under",
    "in_thread",
    "is_free",
    "left_padded",
    "logits_under",
    "prompt_logits",
    "recomputed",
    "recomputed_under",
]

STEPS = 3
T = TypeVar("T")


def distance(a: Tensor, b: Tensor) -> float:
    """Largest absolute difference."""
    return (a.float() - b.float()).abs().max().item()


def prompt_logits(model: PreTrainedModel, prompt: Prompt) -> Tensor:
    """Logits ``[n, vocabulary]`` of one pass over the prompt."""
    logits: Tensor = model(input_ids=prompt.ids, use_cache=True).logits[0]
    return logits


def left_padded(prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask ``[b, n]``, shorter prompts padded on the left."""
    width = max(prompt.ids.shape[1] for prompt in prompts)
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - prompt.ids.shape[1] :] = prompt.ids[0]
        mask[row, width - prompt.ids.shape[1] :] = 1
    return ids, mask


def generated(
    model: Any, prompts: Sequence[Prompt], steps: int = STEPS, **settings: Any
) -> tuple[Tensor, Tensor]:
    """Greedy tokens ``[b, steps]`` and their logits ``[b, steps, vocabulary]``, with a cache."""
    ids, mask = left_padded(prompts)
    out = model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=steps,
        return_dict_in_generate=True,
        output_logits=True,
        **settings,
    )
    return out.sequences[:, ids.shape[1] :], torch.stack(out.logits, dim=1)


def recomputed(model: PreTrainedModel, prompt: Prompt, tokens: Tensor) -> Tensor:
    """Logits ``[steps, vocabulary]`` that lead to `tokens` ``[steps]``, each from a full pass."""
    rows = []
    for step in range(tokens.shape[0]):
        so_far = torch.cat((prompt.ids, tokens[None, :step]), dim=1)
        rows.append(model(input_ids=so_far, use_cache=False).logits[0, -1])
    return torch.stack(rows)


def at_once(model: PreTrainedModel, prompt: Prompt, tokens: Tensor) -> Tensor:
    """The same from one pass over everything, after one over the prompt alone."""
    model(input_ids=prompt.ids, use_cache=False)
    whole = torch.cat((prompt.ids, tokens[None, :-1]), dim=1)
    logits: Tensor = model(input_ids=whole, use_cache=False).logits
    return logits[0, -tokens.shape[0] :]


def logits_under(model: PreTrainedModel, method: Method, prompt: Prompt = LONG) -> Tensor:
    """`prompt_logits` in a block of a method."""
    with applied(model, method, [prompt.tokens]):
        return prompt_logits(model, prompt)


def generated_under(
    model: Any, method: Method, prompts: Sequence[Prompt], steps: int = STEPS, **settings: Any
) -> tuple[Tensor, Tensor]:
    """`generated` in a block of a method."""
    with applied(model, method, [prompt.tokens for prompt in prompts]):
        return generated(model, prompts, steps, **settings)


def recomputed_under(
    model: PreTrainedModel, method: Method, prompt: Prompt, tokens: Tensor
) -> Tensor:
    """`recomputed` in a block of a method."""
    with applied(model, method, [prompt.tokens]):
        return recomputed(model, prompt, tokens)


def assert_refused(
    model: PreTrainedModel,
    method: Method,
    error: type[Exception],
    match: str | None = None,
    prompt: Prompt = LONG,
) -> None:
    """A block of a method cannot be entered."""
    with pytest.raises(error, match=match), applied(model, method, [prompt.tokens]):
        pass


def assert_cached_equals_recomputed(
    model: PreTrainedModel, method: Method, tolerance: float, prompt: Prompt = LONG
) -> None:
    """Decoding with a cache gives the logits of passes over everything."""
    tokens, logits = generated_under(model, method, [prompt])
    assert distance(logits[0], recomputed_under(model, method, prompt, tokens[0])) < tolerance


def assert_rows_equal_prompts_alone(
    model: PreTrainedModel,
    method: Method,
    tolerance: float,
    prompts: Sequence[Prompt] = (SHORT, LONG),
) -> None:
    """Rows of a left-padded batch give the tokens and logits of their prompts alone."""
    together, logits = generated_under(model, method, prompts)
    for row, prompt in enumerate(prompts[:2]):
        alone, expected = generated_under(model, method, [prompt])
        assert torch.equal(together[row], alone[0])
        assert distance(logits[row], expected[0]) < tolerance


def is_free(model: torch.nn.Module) -> bool:
    """Whether another thread could take the model now."""
    lock = model_lock(model)

    def take() -> bool:
        if taken := lock.acquire(blocking=False):
            lock.release()
        return taken

    return in_thread(take)


def in_thread(run: Callable[[], T]) -> T:
    """What `run` returns, or raises, in a thread of its own."""
    results: list[T] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            results.append(run())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    thread.join(timeout=60)
    assert not thread.is_alive(), "the thread waits for something"
    if errors:
        raise errors[0]
    return results[0]
