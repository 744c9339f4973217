"""The command line: ``rag-middle``. One file per command; ``app`` puts them together.

Nothing here imports torch before a command runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Entry point of the ``rag-middle`` script."""
    from rag_middle.cli.app import app

    app(prog_name="rag-middle")
