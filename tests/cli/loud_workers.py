"""Two workers of a command, which write what a model's files may hold."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from contextlib import closing

from rag_middle.cli.spreading import Backend, start_workers


def loud() -> Callable[[int], int]:
    """Log and warn, as transformers does of a model's folder."""
    logging.getLogger("transformers.models").warning("a\x1b]0;logged\x07")
    warnings.warn("b\x1b]0;warned\x07", stacklevel=1)
    return abs


if __name__ == "__main__":
    made = start_workers(loud, backend=Backend.processes, count=2, threads=1, devices=())
    with closing(made) as workers:
        print([result for _, result in workers.results([-1])])
