"""Run a command in a process of its own, and kill or interrupt it on its way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["interrupted_on_its_way", "killed_on_its_way"]

_PATIENCE = 300  # seconds; a busy machine may take minutes to start Python


def killed_on_its_way(arguments: Sequence[object], file: Path, lines: int) -> None:
    """``rag-middle ARGUMENTS``, killed by SIGKILL as soon as `file` has so many lines."""
    process = _on_its_way(arguments, file, lines)
    process.kill()
    _, told = process.communicate()
    assert process.returncode == -signal.SIGKILL, told.decode()
    assert file.read_bytes().count(b"\n") >= lines, told.decode()


def interrupted_on_its_way(arguments: Sequence[object], file: Path, lines: int) -> str:
    """The same with Ctrl-C, which a terminal sends to all processes of a command.

    Returns:
        What was written to standard error.
    """
    process = _on_its_way(arguments, file, lines)
    os.killpg(process.pid, signal.SIGINT)
    try:
        _, told = process.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired:  # it must not be left to the tests that follow
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    assert process.returncode == 130, told.decode()
    return told.decode()


def _on_its_way(arguments: Sequence[object], file: Path, lines: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "from rag_middle.cli import main; main()"]
    process = subprocess.Popen(
        [*command, *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        start_new_session=True,  # with processes of its own to interrupt
        # Ctrl-C counts, also where the tests were started in the background, which ignores it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    until = time.monotonic() + _PATIENCE
    while process.poll() is None and time.monotonic() < until:
        if file.exists() and file.read_bytes().count(b"\n") >= lines:
            break
        time.sleep(0.002)
    return process
