"""Run a command in a process of its own, and kill it on its way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["killed_on_its_way"]

_PATIENCE = 300  # seconds; a busy machine may take minutes to start Python


def killed_on_its_way(arguments: Sequence[object], file: Path, lines: int) -> None:
    """``rag-middle ARGUMENTS``, killed by SIGKILL as soon as `file` has so many lines."""
    command = [sys.executable, "-c", "from rag_middle.cli import main; main()"]
    process = subprocess.Popen(
        [*command, *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    until = time.monotonic() + _PATIENCE
    while process.poll() is None and time.monotonic() < until:
        if file.exists() and file.read_bytes().count(b"\n") >= lines:
            break
        time.sleep(0.002)
    process.kill()
    _, told = process.communicate()
    assert process.returncode == -signal.SIGKILL, told.decode()
    assert file.read_bytes().count(b"\n") >= lines, told.decode()
