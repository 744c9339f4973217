"""Fetch the datasets of the papers' evaluations, and write them as the tasks read them.

::

    python examples/reproduce/prepare.py --data DATA            # everything that is missing
    python examples/reproduce/prepare.py --list                 # all files, with their homes
    python examples/reproduce/prepare.py --data DATA --list     # and which are there
    python examples/reproduce/prepare.py --data DATA --only rewardbench.jsonl

Every file has a named home: a dataset of the hub and its revision, or a repository and its commit.
Hub datasets are read with the packages datasets and huggingface_hub. Nothing else is fetched. What
cannot be fetched is said, with its home, and files that are there already are left alone. Branches
of the hub move, so ``sources.json`` in the data folder keeps the digest of what was fetched.
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

__all__ = ["FILES", "HubFile", "PineFile", "RepositoryFile", "main", "prepare"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """A dataset of the Hugging Face hub, as JSON lines.

    Attributes:
        name: below the data folder.
        dataset: on the hub.
        revision: branch, tag or commit.
        split: of the dataset.
        configs: of the dataset; several are joined, with their names in the field `config_field`.
        config_field: see `configs`.
        archive: a ZIP file of the dataset, for datasets that are scripts, which newer versions of
            datasets do not run.
        member: in the archive, JSON lines as they are, or CSV with ``{config}`` in its name.
    """

    name: str
    dataset: str
    revision: str = "main"
    split: str = "test"
    configs: tuple[str, ...] = ()
    config_field: str | None = None
    archive: str | None = None
    member: str | None = None

    @property
    def home(self) -> str:
        """Where it is from, for people."""
        parts = ", ".join(filter(None, (self.archive, " ".join(self.configs[:3]), self.split)))
        return f"https://huggingface.co/datasets/{self.dataset} ({self.revision}; {parts})"

    def content(self) -> bytes:
        """JSON lines.

        Raises:
            OSError: it cannot be fetched.
        """
        if self.archive is not None:
            return self._archived(self.archive)
        from datasets import load_dataset

        configs = self.configs or (None,)
        rows = (
            (config, row)
            for config in configs
            for row in load_dataset(self.dataset, config, split=self.split, revision=self.revision)
        )
        return self._lines(rows)

    def _archived(self, archive: str) -> bytes:
        from huggingface_hub import hf_hub_download

        assert self.member is not None
        path = hf_hub_download(self.dataset, archive, repo_type="dataset", revision=self.revision)
        with ZipFile(path) as opened:
            if not self.configs:
                return opened.read(self.member)
            rows = (
                (config, row)
                for config in self.configs
                for row in csv.DictReader(
                    io.StringIO(opened.read(self.member.format(config=config)).decode("utf-8-sig"))
                )
            )
            return self._lines(rows)

    def _lines(self, rows: Iterable[tuple[str | None, dict[str, Any]]]) -> bytes:
        lines = []
        for config, row in rows:
            named = {self.config_field: config} if self.config_field else {}
            lines.append(json.dumps({**row, **named}, ensure_ascii=False) + "\n")
        return "".join(lines).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryFile:
    """A file of a repository on GitHub, as it is.

    Attributes:
        name: below the data folder.
        repository: owner and name.
        commit: of the repository.
        path: in the repository.
    """

    name: str
    repository: str
    commit: str
    path: str

    @property
    def home(self) -> str:
        """Where it is from, for people."""
        return f"https://github.com/{self.repository}/blob/{self.commit}/{self.path}"

    def content(self) -> bytes:
        """The file.

        Raises:
            OSError: it cannot be fetched.
        """
        address = f"https://raw.githubusercontent.com/{self.repository}/{self.commit}/{self.path}"
        with urllib.request.urlopen(address, timeout=60) as response:
            content: bytes = response.read()
        return content


@dataclass(frozen=True, slots=True, kw_only=True)
class PineFile(RepositoryFile):
    """Prompts that PINE's authors wrote out, as JSON lines: a list of text, parts and answers each.

    Their repository keeps them in Git LFS.
    """

    def content(self) -> bytes:
        """A line with ``parts`` and ``answers`` for each prompt.

        Raises:
            OSError: it cannot be fetched.
        """
        host = "https://media.githubusercontent.com/media"
        with urllib.request.urlopen(
            f"{host}/{self.repository}/{self.commit}/{self.path}", timeout=300
        ) as response:
            entries = json.load(response)
        lines = [
            json.dumps({"parts": parts, "answers": answers}, ensure_ascii=False) + "\n"
            for _, parts, answers in entries
        ]
        return "".join(lines).encode()


def _lost_in_the_middle(name: str, folder: str) -> RepositoryFile:
    return RepositoryFile(
        name=name,
        repository="nelson-liu/lost-in-the-middle",
        commit="29b8a6d042ce29abccee3db1a73171a107d7e6af",
        path=f"{folder}/{name}",
    )


_LONGBENCH = (
    *("narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique", "gov_report"),
    *("qmsum", "multi_news", "trec", "triviaqa", "samsum", "passage_count"),
    *("passage_retrieval_en", "lcc", "repobench-p"),
)
_ZEROSCROLLS = (
    *("gov_report", "summ_screen_fd", "qmsum", "squality", "qasper", "narrative_qa", "quality"),
    *("musique", "space_digest", "book_sum_sort"),
)
_PINE = tuple(
    f"nq-open-{count}_total_documents_gold_at_{gold}"
    for count, golds in ((10, (0, 4, "4_random", 9)), (20, (0, 4, "4_random", 9, 14, 19)))
    for gold in golds
)
_LEVAL = ("coursera", "quality", "tpo", "gsm100", "topic_retrieval_longchat", "sci_fi")
_CEVAL = (
    *("computer_network", "operating_system", "computer_architecture", "college_programming"),
    *("college_physics", "college_chemistry", "advanced_mathematics", "probability_and_statistics"),
    *("discrete_mathematics", "electrical_engineer", "metrology_engineer"),
    *("high_school_mathematics", "high_school_physics", "high_school_chemistry"),
    *("high_school_biology", "middle_school_mathematics", "middle_school_biology"),
    *("middle_school_physics", "middle_school_chemistry", "veterinary_medicine"),
    *("college_economics", "business_administration", "marxism", "mao_zedong_thought"),
    *("education_science", "teacher_qualification", "high_school_politics"),
    *("high_school_geography", "middle_school_politics", "middle_school_geography"),
    *("modern_chinese_history", "ideological_and_moral_cultivation", "logic", "law"),
    *("chinese_language_and_literature", "art_studies", "professional_tour_guide"),
    *("legal_professional", "high_school_chinese", "high_school_history"),
    *("middle_school_history", "civil_servant", "sports_science", "plant_protection"),
    *("basic_medicine", "clinical_medicine", "urban_and_rural_planner", "accountant"),
    *("fire_engineer", "environmental_impact_assessment_engineer", "tax_accountant", "physician"),
)

#: Everything that the configurations read.
FILES: tuple[HubFile | RepositoryFile, ...] = (
    *(
        _lost_in_the_middle(
            f"nq-open-{count}_total_documents_gold_at_0.jsonl.gz",
            f"qa_data/{count}_total_documents",
        )
        for count in (10, 20, 30)
    ),
    *(
        _lost_in_the_middle(f"kv-retrieval-{count}_keys.jsonl.gz", "kv_retrieval_data")
        for count in (75, 140, 300)
    ),
    *(
        PineFile(
            name=f"pine-{name}.jsonl",
            repository="wzq016/PINE",
            commit="5c2e9deaa9a2be1abe27c14d5cd40ff100e7e4d6",
            path=f"eval_data/lost_in_middle/{name}.json",
        )
        for name in _PINE
    ),
    *(
        HubFile(
            name=f"longbench/{name}.jsonl",
            dataset="THUDM/LongBench",
            archive="data.zip",
            member=f"data/{name}.jsonl",
        )
        for name in _LONGBENCH
    ),
    HubFile(name="loogle-longdep_qa.jsonl", dataset="bigai-nlco/LooGLE", configs=("longdep_qa",)),
    *(
        HubFile(name=f"mmlu-{split}.jsonl", dataset="cais/mmlu", configs=("all",), split=split)
        for split in ("test", "dev")
    ),
    *(
        HubFile(
            name=f"ceval-{split}.jsonl",
            dataset="ceval/ceval-exam",
            configs=_CEVAL,
            config_field="subject",
            split=split,
            archive="ceval-exam.zip",
            member=f"{split}/{{config}}_{split}.csv",
        )
        for split in ("val", "dev")
    ),
    HubFile(
        name="rewardbench.jsonl",
        dataset="allenai/reward-bench",
        revision="01272f0c04adcbe7de26ea6250e03d5a90a6925b",
        split="filtered",
    ),
    *(
        HubFile(
            name=f"zeroscrolls/{name}.jsonl",
            dataset="tau/zero_scrolls",
            split="validation",
            archive=f"{name}.zip",
            member=f"{name}/validation.jsonl",
        )
        for name in _ZEROSCROLLS
    ),
    *(
        RepositoryFile(
            name=f"l_eval/{name}.jsonl",
            repository="OpenLMLab/LEval",
            commit="cd34b050269148aed75acbbe4a599873ad0f37e9",
            path=f"LEval-data/Closed-ended-tasks/{name}.jsonl",
        )
        for name in _LEVAL
    ),
)


def prepare(
    folder: Path, only: Iterable[str] = ()
) -> Iterator[tuple[HubFile | RepositoryFile, str]]:
    """Fetch what is missing.

    Yields:
        Each file with what became of it: ``there``, ``fetched``, or why it is missing.
    """
    wanted = set(only)
    for file in FILES:
        path = folder / file.name
        if wanted and file.name not in wanted:
            continue
        if path.is_file():
            yield file, "there"
            continue
        try:
            content = file.content()
        except ModuleNotFoundError as error:
            yield file, f"missing: needs the package {error.name} (pip install {error.name})"
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0][:200]
            yield file, f"missing: {type(error).__name__} {reason}"
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_name(path.name + ".part")
            unfinished.write_bytes(content)
            unfinished.replace(path)
            _write_down(folder, file, content)
            yield file, "fetched"


def _write_down(folder: Path, file: HubFile | RepositoryFile, content: bytes) -> None:
    path = folder / "sources.json"
    sources = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    sources[file.name] = {"home": file.home, "sha256": hashlib.sha256(content).hexdigest()}
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
    names = {file.name for file in FILES}
    if unknown := [name for name in options.only if name not in names]:
        sys.exit(f"There is no file {unknown[0]!r}. Files: {', '.join(sorted(names))}.")
    missing = 0
    if options.list:
        for file in FILES:
            there = options.data is not None and (options.data / file.name).is_file()
            missing += not there
            state = "" if options.data is None else f"{'there' if there else 'missing':8}"
            print(f"{state}{file.name}  {file.home}")
        if options.data is not None:
            print(f"{missing} of {len(FILES)} files are missing.")
        return
    if options.data is None:
        parser.error("--data FOLDER is needed: where the files go")
    for file, result in prepare(options.data, options.only):
        missing += result.startswith("missing")
        print(f"{file.name}: {result}" + (f" ({file.home})" if result != "there" else ""))
    if missing:
        sys.exit(f"{missing} files are missing: fetch them from their homes, or run this online.")


if __name__ == "__main__":
    main()
