"""``rag-middle methods``: what there is to choose from."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, Field, asdict, fields
from typing import TYPE_CHECKING, Any

import typer

from rag_middle.cli.console import JsonOption, console, print_json
from rag_middle.cli.options import command

if TYPE_CHECKING:
    from rag_middle.methods import Method

#: Labels of facts, and their keys in JSON.
_FACTS = {"cost": "cost", "requires": "requires", "can hurt when": "can_hurt_when"}


@command()
def methods(
    name: str | None = typer.Argument(None, metavar="NAME", help="Show this method in full."),
    as_json: JsonOption = False,
) -> None:
    """List the methods: idea, cost, what the model must have, when they can hurt.

    Methods that other installed packages bring are listed too.
    """
    from rag_middle.methods import METHODS

    if name is not None:
        kind = METHODS.get(name)
        described = _described(name, kind)
        if as_json:
            print_json({**described, "description": inspect.getdoc(kind)})
        else:
            _show_one(described, inspect.getdoc(kind) or "")
        return
    rows = [_described(method, kind) for method, kind in METHODS.items()]
    if as_json:
        print_json(rows)
    else:
        _show_all(rows)


def _described(name: str, kind: type[Method]) -> dict[str, Any]:
    from rag_middle.methods import preset
    from rag_middle.profiles import shipped_profiles

    return {
        "name": name,
        **asdict(kind.info),
        "options": [
            {
                "name": field.name,
                "type": field.type if isinstance(field.type, str) else str(field.type),
                "required": "example" in field.metadata,
                "default": _default(field),
            }
            for field in fields(kind)  # type: ignore[arg-type]
        ],
        "presets": {
            preset_name: {field.name: getattr(made, field.name) for field in fields(made)}  # type: ignore[arg-type]
            for preset_name in shipped_profiles(kind.name)
            for made in [preset(kind.name, preset_name)]
        },
    }


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING and "example" not in field.metadata:
        return field.default_factory()
    return None if field.default is MISSING else field.default


def _show_all(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("method", "", show_lines=True)
    table.columns[0].no_wrap = True
    for row in rows:
        facts = Text(row["idea"])
        for label, key in _FACTS.items():
            facts.append(f"\n{label}: ", "dim").append(row[key])
        table.add_row(f"{row['name']}\n{row['paper']}", facts)
    out = console()
    out.print(table)
    out.print("One in full: rag-middle methods NAME. Several at once: --method ms_poe+siw.")


def _show_one(described: dict[str, Any], description: str) -> None:
    from rich.table import Table

    out = console()
    out.print(f"{described['title']} ({described['name']})", style="bold")
    for label, key in {"paper": "paper", "idea": "idea", **_FACTS}.items():
        if described[key]:
            out.print(f"{label}: {described[key]}", soft_wrap=True)
    out.print(f"\n{description}", soft_wrap=True)
    options, presets = described["options"], described["presets"]
    if options:
        table = Table("name", "type", "default", title="Options, for --method-option NAME=VALUE")
        for option in options:
            default = "has to be set" if option["required"] else str(option["default"])
            table.add_row(option["name"], option["type"], default)
        out.print(table)
    if presets:
        example = f"--method {described['name']}:{next(iter(presets))}"
        out.print(f"Presets, as in {example}")
        for preset, settings in presets.items():
            set_ = [
                f"{option['name']}={settings[option['name']]}"
                for option in options
                if settings[option["name"]] != option["default"]
            ]
            out.print(f"  {preset}: {', '.join(set_)}", soft_wrap=True)
