"""Write the parts of the documentation that the code already says.

    python docs/generate.py            rewrite them
    python docs/generate.py --check    fail where they are out of date

A page is generated whole, or between ``<!-- name:start -->`` and ``<!-- name:end -->``. To generate
more, write a function that returns Markdown and add it to ``PAGES``.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from importlib import import_module
from pathlib import Path
from runpy import run_path
from typing import Any

from typer.main import get_command

from rag_middle.cli.app import app
from rag_middle.methods import METHODS

ROOT = Path(__file__).resolve().parent.parent
GPU_TABLE = run_path(str(ROOT / "benchmarks" / "gpu_table.py"))


@dataclass(frozen=True, kw_only=True)
class Generated:
    """A page, or a block of one, and the function that writes it.

    Attributes:
        path: page, relative to the repository.
        block: name in the page's start and end comments; None: the whole page.
        render: returns the Markdown.
    """

    path: str
    block: str | None
    render: Callable[[], str]

    def apply(self, text: str) -> str:
        """``text`` of the page with this part up to date."""
        body = self.render().strip()
        if self.block is None:
            return body + "\n"
        start, end = f"<!-- {self.block}:start -->", f"<!-- {self.block}:end -->"
        if text.count(start) != 1 or text.count(end) != 1:
            raise SystemExit(f"{self.path}: expected one '{start}' and one '{end}'.")
        before, rest = text.split(start)
        _, after = rest.split(end)
        return f"{before}{start}\n{body}\n{end}{after}"


#: The methods of the papers that the package began with, and the two that need no fitting.
IN_README = ("none", "pine", "rotor", "ms_poe", "positional_hidden_states", "lpes", "siw")


def short_table() -> str:
    """The README's rows: what a method does, what it costs, where it can hurt."""
    measured: dict[str, str] = GPU_TABLE["short_costs"]()
    rows = ["| method | paper | idea | cost | can hurt when |", "| --- " * 5 + "|"]
    for name in IN_README:
        info = METHODS.get(name).info
        cost = "; on an H200: ".join(filter(None, (info.cost, measured.get(name))))
        page = f"[`{name}`](docs/methods/{name}.md)"
        rows.append(_row((page, _linked(info.paper), info.idea, cost, info.can_hurt_when)))
    return "\n".join(rows)


def all_methods() -> str:
    """One line per method of this package, in the order of the registry."""
    lines = []
    for name, method in METHODS.items():
        if method.__module__.startswith("rag_middle."):  # not another installed package's
            paper = f" ({_linked(method.info.paper)})" if method.info.paper else ""
            lines.append(f"- [`{name}`](methods/{name}.md){paper}: {method.info.idea}")
    return "\n".join(lines)


def _linked(paper: str) -> str:
    """``arXiv:<number>`` as a link; anything else as it is."""
    return re.sub(r"arXiv:(\d{4}\.\d{5})", r"[\1](https://arxiv.org/abs/\1)", paper)


def gpu_costs(kernels: str) -> str:
    """Ratios measured on a GPU, and predicted ones, by method."""
    table: str = GPU_TABLE["cost_table"](kernels=kernels)
    return table


def command_line() -> str:
    """Every command with its help and its own options, then those that several have."""
    group: Any = get_command(app)
    having: dict[str, list[str]] = {}  # commands by the line of an option
    for name, command in group.commands.items():
        for parameter in command.params:
            having.setdefault(_option_line(parameter), []).append(name)
    by_commands: dict[tuple[str, ...], list[str]] = {}
    for line, names in having.items():
        by_commands.setdefault(tuple(names), []).append(line)

    parts = []
    for name, command in group.commands.items():
        arguments = [
            parameter for parameter in command.params if parameter.param_type_name == "argument"
        ]
        usage = " ".join(("rag-middle", name, "[OPTIONS]", *map(_argument, arguments)))
        parts += [f"## `{usage}`", inspect.cleandoc(command.help)]
        parts.append("\n".join(by_commands.pop((name,), [])))
    parts.append("## Options of several commands")
    for commands, lines in by_commands.items():
        parts += [", ".join(f"`{name}`" for name in commands) + ":", "\n".join(lines)]
    return "\n\n".join(filter(None, parts))


def _argument(parameter: Any) -> str:
    shown = parameter.metavar or parameter.name.upper()
    return shown if parameter.required else f"[{shown}]"


def _option_line(parameter: Any) -> str:
    names = [parameter.metavar or parameter.name.upper()]
    if parameter.param_type_name == "option":
        names = [*parameter.opts, *parameter.secondary_opts]
    default = parameter.default
    meaning = parameter.help
    if isinstance(default, Enum):
        meaning += f" One of {', '.join(str(choice.value) for choice in type(default))}."
    if parameter.required:
        meaning += " Required."
    elif default is not None and default is not False and default != ():
        meaning += f" Default: `{default}`."
    return f"- {', '.join(f'`{name}`' for name in names)}: {meaning}"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def of_tests(module: str, name: str | None = None) -> str:
    """What a module of the tests declares, in all or under a name, and they are held to."""
    sys.path.insert(0, str(ROOT))
    declared: Any = import_module(f"tests.{module}")
    text: str = declared.markdown(*([] if name is None else [getattr(declared, name)]))
    return text


def papers() -> str:
    """Every table and figure of the papers, with the file that runs it."""
    sys.path.insert(0, str(ROOT / "examples" / "reproduce"))
    return str(import_module("overview").markdown())


PAGES = (
    Generated(path="examples/reproduce/README.md", block="papers", render=papers),
    Generated(path="README.md", block="methods", render=short_table),
    Generated(path="docs/index.md", block="methods", render=all_methods),
    Generated(path="docs/choosing.md", block="gpu-costs", render=partial(gpu_costs, "auto")),
    Generated(path="docs/choosing.md", block="gpu-costs-torch", render=partial(gpu_costs, "torch")),
    Generated(path="docs/cli.md", block="commands", render=command_line),
    Generated(
        path="docs/contract_matrix.md", block="matrix", render=partial(of_tests, "contract.matrix")
    ),
)


def draw_measurement() -> None:
    """The picture of the full measurement that comes with the package, if it is there."""
    from rag_middle.demo import full_measurement, picture
    from rag_middle.evaluation.plots import image

    if measured := full_measurement():
        png = image(picture(measured), "png", dpi=200)
        (ROOT / "docs/images/demo_curve.png").write_bytes(png)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail where a page is out of date")
    check: bool = parser.parse_args().check

    stale = []
    for page in PAGES:
        path = ROOT / page.path
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        fresh = page.apply(text)
        if fresh == text:
            continue
        stale.append(page.path)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(fresh, encoding="utf-8")
            print(f"wrote {page.path}")
    if not check:  # drawing libraries of other versions draw other pixels
        draw_measurement()
    if check and stale:
        sys.exit(f"Out of date: {', '.join(stale)}. Run `make docs` and commit the result.")


if __name__ == "__main__":
    main()
