"""Messages of the library, in the words of the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_type_hints

from typer.models import OptionInfo

from rag_middle.wording import Argument, WordedException

__all__ = ["flags_of", "in_flags"]


def flags_of(command: Callable[..., Any], **others: str) -> dict[str, str]:
    """The options of a command: names of its parameters, and flags.

    Args:
        command: its function.
        others: what the library calls something, and the flag for it, where the names differ.
    """
    flags = {}
    for name, hint in get_type_hints(command, include_extras=True).items():
        for info in getattr(hint, "__metadata__", ()):
            if isinstance(info, OptionInfo):
                # In Annotated, typer keeps the first of the declarations as the default.
                declared = [info.default, *(info.param_decls or ())]
                spelt = [each.partition("/")[0] for each in declared if isinstance(each, str)]
                flags[name] = max(spelt, key=len, default="--" + name.replace("_", "-"))
    return {**flags, **others}


def in_flags(message: Exception | str, flags: Mapping[str, str]) -> str:
    """A message in which arguments have the names of options.

    ``on_overflow='drop_documents'`` becomes ``--on-overflow drop_documents``, ``top_p must be`` the
    same of ``--top-p``, and ``rebuild=True`` only ``--rebuild``. An argument that the command has
    no flag for keeps its name.

    Args:
        message: an error or a warning; text is left as it is.
        flags: names of parameters, and what they are here.
    """
    if not isinstance(message, WordedException):
        return str(message)
    return message.worded(partial(_flag, flags=flags))


def _flag(argument: Argument, *, flags: Mapping[str, str]) -> str:
    flag = flags.get(argument.name)
    if flag is None:
        return str(argument)
    return f"{flag} {argument.value}" if argument.has_value and argument.value is not True else flag
