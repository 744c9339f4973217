"""Half precision beside float32: the same weights, the same tokens, the same choices.

What is compared is rounding, so nothing else may differ. The float32 model holds the weights of the
half-precision one. And it makes the choices that the other made: which experts a token goes to,
which head is the most position-aware, which document is nearest. A near-tie that falls the other
way moves logits by more than any rounding, in the unmodified model too; such flips are counted, and
bounded by themselves.
"""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from rag_middle.attention import applied
from rag_middle.attention.seam import MODEL_CACHE
from rag_middle.methods import Method
from tests.contract.cases import Prompt
from tests.contract.running import left_padded

__all__ = ["Choices", "half_precision", "logits_of_rows", "rounded"]


@torch.no_grad()
def rounded(model: PreTrainedModel) -> PreTrainedModel:
    """The float32 model with its weights rounded to bfloat16, which float16 holds as well."""
    for parameter in model.parameters():
        parameter.copy_(parameter.bfloat16())
    return model


def half_precision(exact: PreTrainedModel, dtype: str) -> PreTrainedModel:
    """A copy with parameters of this type. Buffers stay, as where a model is loaded in it."""
    model = copy.deepcopy(exact)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype))
    return model


class Choices(TorchFunctionMode):
    """Records what is chosen by comparing numbers, or makes the choices of a record.

    Args:
        record: of a run that made the same calls; None: record.

    Attributes:
        made: name of the operation and what came out, call by call.
        counts: choices by operation, where they were made again.
        flips: those of them that this run's own numbers would have decided otherwise.
    """

    def __init__(self, record: Choices | None = None) -> None:
        super().__init__()
        self.made: list[tuple[str, Tensor]] = []
        self.counts: Counter[str] = Counter()
        self.flips: Counter[str] = Counter()
        self._record: Iterator[tuple[str, Tensor]] | None = record and iter(record.made)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "").strip("_")
        values = isinstance(args[0] if args else None, Tensor) and args[0].is_floating_point()
        if not values or name not in ("topk", "max", "argsort", "gt", "ge", "lt", "le"):
            return out
        ranks = isinstance(out, tuple)
        chosen: Tensor = out[1] if ranks else out
        if name == "max" and not ranks:
            return out
        if self._record is None:
            self.made.append((name, chosen.clone()))
            return out
        of, theirs = next(self._record)
        assert (of, theirs.shape) == (name, chosen.shape)
        if name == "topk":  # which ones, not in what order
            differ = (chosen.sort(-1)[0] != theirs.sort(-1)[0]).any(-1)
        else:
            differ = chosen != theirs
            differ = differ.any(-1) if name == "argsort" else differ
        self.counts[name] += differ.numel()
        self.flips[name] += int(differ.sum())
        return type(out)((args[0].gather(-1, theirs), theirs)) if ranks else theirs


@torch.no_grad()
def logits_of_rows(
    model: PreTrainedModel, method: Method, prompts: Sequence[Prompt], choices: Choices
) -> list[Tensor]:
    """Logits `[n + 1, vocabulary]` of every prompt's tokens and of one fed after them."""
    ids, mask = left_padded(prompts)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    says_where = "position_ids" in inspect.signature(model.forward).parameters

    def more(of: Tensor) -> dict[str, Tensor]:
        return {"position_ids": of} if says_where else {}

    with applied(model, method, [prompt.tokens for prompt in prompts]), choices:
        read: Any = model(input_ids=ids, attention_mask=mask, use_cache=True, **more(positions))
        step: Any = model(
            input_ids=torch.full_like(ids[:, :1], 7),
            attention_mask=torch.cat((mask, mask[:, -1:]), dim=1),
            **{MODEL_CACHE: read[MODEL_CACHE]},
            **more(positions[:, -1:] + 1),
        )
    logits = torch.cat((read.logits, step.logits), dim=1)
    return [logits[row, int((mask[row] == 0).sum()) :] for row in range(len(prompts))]
