"""Fetch the datasets of the papers' evaluations, and write them as the tasks read them.

::

    python examples/reproduce/prepare.py --data DATA            # everything that is missing
    python examples/reproduce/prepare.py --list                 # all files, with their homes
    python examples/reproduce/prepare.py --data DATA --list     # and which are there
    python examples/reproduce/prepare.py --data DATA --only rewardbench.jsonl

Every file has a named home in ``sources.yaml``: a dataset of the hub and its revision, or a
repository and its commit. Hub datasets are read with the packages datasets and huggingface_hub.
Nothing else is fetched. What cannot be fetched is said, with its home, and files that are there
already are left alone. Branches of the hub move, so ``sources.json`` in the data folder keeps the
digest of what was fetched.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import sys
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file below the data folder and its home, on the hub or on GitHub; see ``sources.yaml``."""

    name: str
    hub: str = ""
    github: str = ""
    revision: str = "main"
    split: str = "test"
    configs: tuple[str, ...] = ()
    config_field: str = ""
    archive: str = ""
    member: str = ""
    path: str = ""
    format: str = ""

    @property
    def home(self) -> str:
        """Where it is from, for people."""
        if self.github:
            return f"https://github.com/{self.github}/blob/{self.revision}/{self.path}"
        parts = ", ".join(filter(None, (self.archive, " ".join(self.configs[:3]), self.split)))
        return f"https://huggingface.co/datasets/{self.hub} ({self.revision}; {parts})"

    def content(self) -> bytes:
        """What the tasks read.

        Raises:
            OSError: it cannot be fetched.
        """
        if self.format == "pine":
            return self._prompts_of_pine()
        if self.github:
            return _fetched("https://raw.githubusercontent.com", self)
        if self.archive:
            return self._archived()
        from datasets import load_dataset

        read = [
            (config, load_dataset(self.hub, config, split=self.split, revision=self.revision))
            for config in self.configs or (None,)
        ]
        return self._lines(read)

    def _archived(self) -> bytes:
        from huggingface_hub import hf_hub_download

        path = hf_hub_download(self.hub, self.archive, repo_type="dataset", revision=self.revision)
        with ZipFile(path) as opened:
            if not self.configs:
                return opened.read(self.member)
            tables = [
                (config, opened.read(self.member.replace("{config}", config)).decode("utf-8-sig"))
                for config in self.configs
            ]
        return self._lines((config, csv.DictReader(io.StringIO(text))) for config, text in tables)

    def _lines(self, tables: Iterable[tuple[str | None, Iterable[dict[str, Any]]]]) -> bytes:
        """JSON lines of tables by the name of their config."""
        return _json_lines(
            {**row, **({self.config_field: config} if self.config_field else {})}
            for config, rows in tables
            for row in rows
        )

    def _prompts_of_pine(self) -> bytes:
        """Of entries of text, parts and answers, in a repository that keeps them in Git LFS."""
        entries = json.loads(_fetched("https://media.githubusercontent.com/media", self))
        return _json_lines({"parts": parts, "answers": answers} for _, parts, answers in entries)


def _fetched(host: str, source: Source) -> bytes:
    address = f"{host}/{source.github}/{source.revision}/{source.path}"
    with urllib.request.urlopen(address, timeout=300) as response:
        content: bytes = response.read()
    return content


def _json_lines(rows: Iterable[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _sources() -> Iterator[Source]:
    entries = yaml.safe_load(Path(__file__).with_name("sources.yaml").read_text(encoding="utf-8"))
    for entry in entries:
        for value in entry.pop("each", [""]):
            named: dict[str, Any] = {
                name: text.replace("{}", str(value)) if isinstance(text, str) else tuple(text)
                for name, text in entry.items()
            }
            yield Source(**named)


#: Everything that the configurations read.
SOURCES = tuple(_sources())


def prepare(folder: Path, only: Iterable[str] = ()) -> Iterator[tuple[Source, str]]:
    """Fetch what is missing.

    Yields:
        Each file with what became of it: ``there``, ``fetched``, or why it is missing.
    """
    wanted = set(only)
    for source in SOURCES:
        path = folder / source.name
        if wanted and source.name not in wanted:
            continue
        if path.is_file():
            yield source, "there"
            continue
        try:
            content = source.content()
        except ModuleNotFoundError as error:
            yield source, f"missing: needs the package {error.name} (pip install {error.name})"
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0][:200]
            yield source, f"missing: {type(error).__name__} {reason}"
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_name(path.name + ".part")
            unfinished.write_bytes(content)
            unfinished.replace(path)
            _write_down(folder, source, content)
            yield source, "fetched"


def _write_down(folder: Path, source: Source, content: bytes) -> None:
    path = folder / "sources.json"
    sources = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    sources[source.name] = {"home": source.home, "sha256": hashlib.sha256(content).hexdigest()}
    path.write_text(json.dumps(sources, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Fetch the datasets of the papers' evaluations from their homes."""
    parser = argparse.ArgumentParser(prog="prepare.py", description=main.__doc__)
    parser.add_argument("--data", type=Path, help="folder of the tasks' files")
    parser.add_argument("--only", action="append", default=[], help="this file; repeatable")
    parser.add_argument(
        "--list",
        action="store_true",
        help="fetch nothing: all files, with their homes, and those in --data",
    )
    options = parser.parse_args(arguments)
    names = {source.name for source in SOURCES}
    if unknown := [name for name in options.only if name not in names]:
        sys.exit(f"There is no file {unknown[0]!r}. Files: {', '.join(sorted(names))}.")
    missing = 0
    if options.list:
        for source in SOURCES:
            there = options.data is not None and (options.data / source.name).is_file()
            missing += not there
            state = "" if options.data is None else f"{'there' if there else 'missing':8}"
            print(f"{state}{source.name}  {source.home}")
        if options.data is not None:
            print(f"{missing} of {len(SOURCES)} files are missing.")
        return
    if options.data is None:
        parser.error("--data FOLDER is needed: where the files go")
    for source, result in prepare(options.data, options.only):
        missing += result.startswith("missing")
        print(f"{source.name}: {result}" + (f" ({source.home})" if result != "there" else ""))
    if missing:
        sys.exit(f"{missing} files are missing: fetch them from their homes, or run this online.")


if __name__ == "__main__":
    main()
