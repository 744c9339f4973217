"""One request at a time on a model, and the model left as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from rag_middle.attention import model_lock
from rag_middle.errors import MethodConfigError

__all__ = ["in_eval_mode", "refuse_inside_request", "turn"]

_POLL_SECONDS = 0.05


@contextmanager
def turn(model: PreTrainedModel, cancelled: Callable[[], bool] = lambda: False) -> Iterator[bool]:
    """Wait for the model; inside the block it is ours.

    Yields:
        True, or False where `cancelled` became true before it was our turn.
    """
    lock = model_lock(model)
    while not lock.acquire(timeout=_POLL_SECONDS):
        if cancelled():
            yield False
            return
    try:
        yield True
    finally:
        lock.release()


def refuse_inside_request(model: PreTrainedModel) -> None:
    """Raise where this thread has the model: a second thread would wait for it in vain.

    Raises:
        MethodConfigError: it has.
    """
    lock: Any = model_lock(model)
    if lock._is_owned():  # what threading.Condition asks, too
        raise MethodConfigError(
            "A stream generates in a thread of its own, which would wait for this block to end. "
            "Leave the applied() block first, or call generate()."
        )


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Without dropout; afterwards each module is back in the mode it was in."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
