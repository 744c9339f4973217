"""``rag-middle methods``: what there is to choose from."""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import MISSING, Field, asdict, fields
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import typer

from rag_middle.cli import console
from rag_middle.cli import options as opt

if TYPE_CHECKING:
    from rag_middle.methods import Method


@opt.command
def methods(
    name: str | None = typer.Argument(None, metavar="NAME", help="Show this method in full."),
    as_json: opt.Json = False,
) -> None:
    """List the methods: idea, cost, what the model must have, when they can hurt.

    Methods that other installed packages bring are listed too.
    """
    from rag_middle.methods import METHODS

    if name is None:
        rows = [_described(each, kind) for each, kind in METHODS.items()]
    else:
        kind = METHODS.get(name)
        rows = [{**_described(name, kind), "description": inspect.getdoc(kind) or ""}]
    if as_json:
        console.print_json(rows if name is None else rows[0])
        return
    for row in rows:
        _show(row)
    if name is None:
        console.print_text("In full: rag-middle methods NAME. Several: --method ms_poe+siw.")


def _described(name: str, kind: type[Method]) -> dict[str, Any]:
    from rag_middle.methods import preset
    from rag_middle.profiles import shipped_profiles

    options: list[dict[str, Any]] = [
        {
            "name": field.name,
            "type": _written(kind, field),
            "required": "example" in field.metadata,
            "default": _default(field),
        }
        for field in fields(kind)  # type: ignore[arg-type]
    ]
    presets = {
        each: {option["name"]: getattr(preset(name, each), option["name"]) for option in options}
        for each in shipped_profiles(name)
    }
    return {"name": name, **asdict(kind.info), "options": options, "presets": presets}


def _written(kind: type[Method], field: Field[Any]) -> str:
    """The type of an option as its values are written in JSON, with the choices of an alias."""
    words = field.type.__name__ if isinstance(field.type, type) else str(field.type)
    for name, alias in vars(sys.modules[kind.__module__]).items():
        if get_origin(alias) is Literal:
            words = re.sub(rf"\b{name}\b", " | ".join(get_args(alias)), words)
    return words.replace("tuple[", "[").replace("None", "null")


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING and "example" not in field.metadata:
        return field.default_factory()
    return None if field.default is MISSING else field.default


def _show(described: dict[str, Any]) -> None:
    lines = [f"{described['name']}: {described['title']}. {described['paper']}"]
    for fact in ("idea", "cost", "requires", "can_hurt_when"):
        lines.append(f"  {fact.replace('_', ' ')}: {described[fact]}")
    if "description" in described:
        lines.append(f"\n{described['description']}\n")
        for option in described["options"]:
            default = "has to be set" if option["required"] else f"default {option['default']}"
            lines.append(f"--method-option {option['name']}={option['type']}: {default}")
        defaults = {option["name"]: option["default"] for option in described["options"]}
        for preset, settings in described["presets"].items():
            changed = [f"{key}={it}" for key, it in settings.items() if it != defaults[key]]
            lines.append(f"--method {described['name']}:{preset}: {', '.join(changed)}")
    console.print_text("\n".join(lines) + "\n")
