"""Processes that may be ended by what they are given, and blocks of bytes to and from them.

What strangers write is read by libraries that recurse, count and allocate as it asks them to. In a
process of its own, within limits that the system holds, that ends one process and nothing else.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

__all__ = [
    "TooLargeError",
    "address_space",
    "limit_this_process",
    "receive",
    "send",
    "started",
]

#: With the modules of the process that starts it, wherever that one has found them.
_RUN = (
    "import importlib, json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "importlib.import_module(sys.argv[2]).serve()"
)
_PACKAGES = str(Path(__file__).resolve().parents[1])


class TooLargeError(Exception):
    """The other end wants to send more than was allowed."""


def started(module: str, *, quiet: bool) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A new process that runs `serve` of a module, and the other end of its standard input.

    No Ctrl-C of the terminal reaches it: it has to end when nobody holds that end.

    Args:
        module: its full name.
        quiet: nothing that it writes is shown.

    Raises:
        OSError: it cannot be started.
    """
    if os.name != "posix" or not sys.executable or getattr(sys, "frozen", False):
        raise OSError("there is no Python here that could be started")
    ours, theirs = socket.socketpair()
    # Not the folder where this process stands now, as interactive sessions have it: files of
    # strangers there would be taken for modules that this process has long imported.
    path = [entry for entry in sys.path if isinstance(entry, str) and entry not in ("", os.curdir)]
    # As standard input: a descriptor that is passed on may be 0 where the caller closed its own.
    arguments = [sys.executable, "-P", "-c", _RUN, json.dumps([*path, _PACKAGES]), module]
    output = subprocess.DEVNULL if quiet else None
    try:
        with theirs:
            process = subprocess.Popen(
                arguments,
                stdin=theirs.fileno(),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
    except BaseException:
        ours.close()
        raise
    return process, ours


def address_space() -> int | None:
    """Bytes of memory that this process has asked for; None where the system does not say."""
    try:
        with open("/proc/self/statm") as file:  # of Linux
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def limit_this_process(seconds: float, most_memory: int | None) -> None:
    """Have the system end this process after more time, and refuse it more memory.

    Args:
        seconds: of a processor, from now on.
        most_memory: bytes, as `address_space` counts them.
    """
    import resource

    def limit(kind: int, most: int) -> None:
        hard = resource.getrlimit(kind)[1]  # stays: the next limit may be higher
        resource.setrlimit(
            kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard)
        )

    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_CPU, int(used + seconds) + 1)
    # Whoever started this one may ignore or block the signal of that limit.
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGXCPU])
    if most_memory is not None:
        limit(resource.RLIMIT_AS, most_memory)


def send(connection: socket.socket, block: bytes) -> None:
    """Send a block."""
    connection.sendall(struct.pack(">Q", len(block)))
    connection.sendall(block)


def receive(connection: socket.socket, most: int | None = None) -> bytes:
    """The next block.

    Args:
        connection: to the one that sends it.
        most: bytes that it may have.

    Raises:
        EOFError: the other end is closed.
        TooLargeError: it has more.
    """
    (size,) = struct.unpack(">Q", _exactly(connection, 8))
    if most is not None and size > most:
        raise TooLargeError
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
