"""Processes for untrusted input, within limits of time and memory, and blocks of bytes to them.

Libraries that read what strangers write recurse, count and allocate as it asks them to. In another
process, whose limits the operating system enforces, they end that one and nothing else.
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
    "start_process",
]

#: What the new process runs: it finds modules where the process that starts it does.
_RUN = (
    "import importlib, json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from rag_middle import isolation; isolation._is_started = True; "
    "importlib.import_module(sys.argv[2]).serve()"
)
#: Whether this process was started here. It starts no other: where a script has the name of a
#: library, each would run that script in the library's place, and start the next one.
_is_started = False
_PACKAGES = str(Path(__file__).resolve().parents[1])


class TooLargeError(Exception):
    """The other end wants to send a larger block than is allowed."""


def start_process(module: str, *, quiet: bool) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process that runs `serve` of a module, with a socket as its standard input.

    No Ctrl-C of the terminal reaches it: it has to end when the other end of that socket is closed.

    Args:
        module: its full name.
        quiet: nothing that it writes is shown.

    Returns:
        The process, and the other end of its standard input.

    Raises:
        OSError: it cannot be started.
    """
    frozen = getattr(sys, "frozen", False)
    if os.name != "posix" or not sys.executable or frozen or _is_started:
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


def limit_this_process(seconds: float, max_memory: int | None) -> None:
    """Have the system end this process after some time, and refuse it memory beyond a limit.

    Args:
        seconds: of processor time, from now on.
        max_memory: bytes in all, as `address_space` counts them; None: no limit.
    """
    import resource

    def limit(kind: int, most: int) -> None:
        hard = resource.getrlimit(kind)[1]  # stays: the next limit may be higher
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (soft, hard))

    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_CPU, int(used + seconds) + 1)
    # Whoever started this one may ignore or block the signal of that limit.
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGXCPU])
    if max_memory is not None:
        limit(resource.RLIMIT_AS, max_memory)


def send(connection: socket.socket, block: bytes) -> None:
    """Send a block, its length first.

    Raises:
        OSError: the other end is closed, or takes nothing for too long.
    """
    connection.sendall(struct.pack(">Q", len(block)))
    connection.sendall(block)


def receive(connection: socket.socket, max_bytes: int | None = None) -> bytes:
    """The next block.

    Args:
        connection: to the one that sends it.
        max_bytes: that it may have; None: any number.

    Raises:
        EOFError: the other end is closed.
        TooLargeError: it has more.
        OSError: nothing comes for too long, or the connection is lost.
    """
    (size,) = struct.unpack(">Q", _exactly(connection, 8))
    if max_bytes is not None and size > max_bytes:
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
