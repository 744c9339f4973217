"""Score with one worker and no end; argument: a file for the worker's process id."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rag_middle.calibration import Job, Objective, Scoring, scored
from rag_middle.methods import Method, NoMethod
from rag_middle.workers import Processes


@dataclass(frozen=True)
class Endless:
    """Writes its process id, and never ends."""

    pid_file: Path

    def __call__(self) -> Objective:
        def score(method: Method) -> float:
            self.pid_file.write_text(f"{os.getpid()}\n")
            time.sleep(3600)
            return 0.0

        return score


if __name__ == "__main__":
    workers = Processes(Scoring(Endless(Path(sys.argv[1]))), 1, 1)
    list(scored(workers, [Job(key="a", method=NoMethod())]))
