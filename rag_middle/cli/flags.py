"""Messages of the library, in the words of the command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from typer.models import OptionInfo

__all__ = ["flags_of", "in_flags"]

_QUOTED = r"(?P<quoted>(?<!\w)'[^'\n]*'(?!\w))"
_FLAG_FOLLOWS = re.compile(r"\b[\w.]+(?:=\S+|\([^()\s]*\)|_\w+) \((--[^()]+)\)")


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


def in_flags(message: str, flags: Mapping[str, str]) -> str:
    """A message in which arguments have the names of options.

    ``on_overflow='drop_documents'`` becomes ``--on-overflow drop_documents``, ``top_p must be`` the
    same of ``--top-p``, and ``rebuild=True (--rebuild)`` only ``--rebuild``. What stands in quotes
    is somebody's words and stays; so does a name that is a word of English, unless something
    follows that tells it from one.

    Args:
        message: of an error.
        flags: names in messages, and what they are here; flags that messages already name may be
            among them.
    """
    message = _FLAG_FOLLOWS.sub(r"\1", message)
    if not flags:
        return message
    names = "|".join(map(re.escape, sorted(flags, key=len, reverse=True)))
    value = r"=(?:'(?P<text>[^'\n]*)'|(?P<value>[\w.+-]*\w))"
    found = re.compile(rf"(?<![\w-])(?P<name>{names})(?![\w-])(?:{value}|(?P<told> must\b))?")
    return re.sub(rf"{_QUOTED}|{found.pattern}", lambda match: _flag(match, flags), message)


def _flag(match: re.Match[str], flags: Mapping[str, str]) -> str:
    if match["quoted"] is not None:
        return match.group()
    name, told = match["name"], match["told"] or ""
    value = match["text"] if match["text"] is not None else match["value"]
    if value == "True":
        return flags[name]
    if value is not None:
        return f"{flags[name]} {value}"
    is_word = name.isalpha() and not told
    return match.group() if is_word else flags[name] + told
