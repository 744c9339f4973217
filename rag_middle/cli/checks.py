"""What can be refused before a model is loaded."""

from __future__ import annotations

from typing import Any

__all__ = ["check_generation", "check_method"]


def check_method(method: str, method_options: dict[str, Any]) -> None:
    """Raises UnknownNameError or MethodConfigError where there is no such method."""
    from rag_middle.methods import resolve_method

    resolve_method(method, method_options)


def check_generation(options: dict[str, Any]) -> None:
    """Raises UnsupportedGenerationError where fields of `GenerationOptions` are refused."""
    from rag_middle.generation import GenerationOptions

    GenerationOptions(**options)
