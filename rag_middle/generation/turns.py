"""One request at a time on a model, and the model left as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel

from rag_middle.attention import in_eval_mode, model_lock
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
    try:
        while not (ours := lock.acquire(timeout=_POLL_SECONDS)) and not cancelled():
            pass
        yield ours
    finally:
        lock.release()


def refuse_inside_request(model: PreTrainedModel) -> None:
    """Raise where this thread has the model: a second thread would wait for it in vain.

    Raises:
        MethodConfigError: it has.
    """
    if model_lock(model).is_owned():
        raise MethodConfigError(
            "A stream generates in a thread of its own, which would wait for this block to end. "
            "Leave the applied() block first, or call generate()."
        )
