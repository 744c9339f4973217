"""Which faults the tests find: deliberate ones, each in a copy of the repository.

    python benchmarks/mutations.py                   every fault, results to benchmarks/results
    python benchmarks/mutations.py --only window     those whose name contains the word
    python benchmarks/mutations.py --jobs 1          one at a time
    python benchmarks/mutations.py --continue        without those that an interrupted run has tried

A fault replaces one piece of text in one file. The tests that belong to the file's folder (`TESTS`)
then run until the first failure: those that are not slow, and where they find nothing the others
too (all pairs of families and methods, slow tests). The long suite contains the short one, so a
fault that the short one finds needs no long run. In the end, all tests that failed run once without
a fault, and have to pass.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from threading import local
from time import perf_counter

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "mutations"
COPIED = ("rag_middle", "tests", "integrations", "examples", "docs", "benchmarks")

_CONTRACT = ("tests/contract/test_every_family.py", "tests/contract", "tests/golden")
#: The tests that run for a fault in a file or folder, the most specific path first. Of these, files
#: named after a word of the fault's path go first.
TESTS: dict[str, tuple[str, ...]] = {
    "rag_middle/attention/patch.py": ("tests/contract/test_no_trace.py", "tests/attention"),
    "rag_middle/attention/seam.py": ("tests/contract/test_no_trace.py", "tests/attention"),
    "rag_middle/attention/weights.py": ("tests/methods/test_weights.py", *_CONTRACT),
    "rag_middle/attention/observe.py": ("tests/attention/test_observe.py",),
    "rag_middle/methods/document_blocks/document_": ("tests/generation/test_document_cache.py",),
    "rag_middle/methods": ("tests/methods", "tests/ops", *_CONTRACT),
    "rag_middle/ops": ("tests/ops", "tests/methods", *_CONTRACT),
    "rag_middle/attention": (*_CONTRACT[:1], "tests/methods", "tests/attention", *_CONTRACT[1:]),
    "rag_middle/generation": ("tests/generation", "tests/contract/test_generation_ways.py"),
    "rag_middle/tokens": ("tests/tokens", "tests/attacks/test_control_tokens.py"),
    "rag_middle/retrieval": ("tests/retrieval",),
    "rag_middle/evaluation": ("tests/evaluation",),
    "rag_middle/calibration": ("tests/calibration",),
    "rag_middle/conventions": ("integrations/langchain/tests",),
    "rag_middle/answering": ("tests/answering",),
    "rag_middle/": ("tests/documents", "tests/tokens", "tests/attacks/test_forged_documents.py"),
    "integrations/langchain": ("integrations/langchain/tests",),
    "integrations/llama_index": ("integrations/llama_index/tests",),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One wrong line.

    Attributes:
        name: what is wrong.
        path: of the file, relative to the repository.
        old: text that occurs once in the file.
        new: what stands there instead.
    """

    name: str
    path: str
    old: str
    new: str

    @property
    def tests(self) -> tuple[str, ...]:
        """Files of the tests that belong to it, those that find it soonest first."""
        folders = next(tests for folder, tests in TESTS.items() if self.path.startswith(folder))
        words = [part.removesuffix(".py") for part in self.path.split("/")[2:]]
        # File by file: pytest takes files out of the order where their folder is named too.
        files = [
            path.relative_to(ROOT).as_posix()
            for folder in folders
            for path in sorted((ROOT / folder).rglob("test_*.py")) or [ROOT / folder]
        ]
        named = [path for path in files if any(word in Path(path).name for word in words)]
        return tuple(dict.fromkeys((*named, *files)))


def _faults(path: str, *changes: tuple[str, str, str]) -> list[Fault]:
    return [Fault(name, path, old, new) for name, old, new in changes]


A, M, G = "rag_middle/attention", "rag_middle/methods", "rag_middle/generation"
R, E, C = "rag_middle/retrieval", "rag_middle/evaluation", "rag_middle/calibration"
LANGCHAIN = "integrations/langchain/langchain_rag_middle"
LLAMA_INDEX = "integrations/llama_index/llama_index/llms/rag_middle"

FAULTS: tuple[Fault, ...] = (
    # -- attention ---------------------------------------------------------------------------------
    *_faults(
        f"{A}/weights.py",
        (
            "window of the last rows one too long",
            "hidden | (distance >= traits.sliding_window)",
            "hidden | (distance > traits.sliding_window)",
        ),
        (
            "window of the first column one too long",
            "hidden | (distance >= traits.sliding_window)",
            "hidden | (distance > traits.sliding_window)",
        ),
        ("a token does not see itself", "hidden = distance < 0", "hidden = distance <= 0"),
        (
            "soft cap not multiplied back",
            "traits.softcap * torch.tanh(score / traits.softcap)",
            "torch.tanh(score / traits.softcap)",
        ),
        (
            "sinks left out of the log-sum-exp",
            'sinks: Tensor | None = call.options.get("s_aux")',
            "sinks: Tensor | None = None",
        ),
    ),
    *_faults(
        f"{A}/request.py",
        (
            "padding of joined rows on the wrong side",
            "columns - part.shape[2] :] = part",
            ": part.shape[2]] = part",
        ),
        (
            "restored columns in the wrong order",
            "(prompt, dropped, recent)",
            "(prompt, recent, dropped)",
        ),
    ),
    *_faults(
        f"{A}/patch.py",
        (
            "hook left on the module",
            "stack.callback(rotary.register_forward_hook(record, with_kwargs=True).remove)",
            "rotary.register_forward_hook(record, with_kwargs=True)",
        ),
    ),
    *_faults(
        f"{A}/seam.py",
        (
            "other threads see the method",
            "if handler_of(self._owner or module) is None:",
            "if False:",
        ),
    ),
    *_faults(
        f"{A}/rotary.py",
        (
            "positions multiplied instead of divided",
            "self.at(self.position_ids.float() / scale)",
            "self.at(self.position_ids.float() * scale)",
        ),
        (
            "every row gets the first row's table",
            "table[min(row, len(table) - 1)]",
            "table[0]",
        ),
    ),
    *_faults(
        f"{A}/observe.py",
        ("sinks left out of observed attention", "of_layer, sinks=sinks)", "of_layer)"),
    ),
    # -- ops ---------------------------------------------------------------------------------------
    *_faults(
        "rag_middle/ops/curves.py",
        ("last layer not at the curve's end", "layer / (num_layers - 1)", "layer / num_layers"),
        (
            "curve read backwards",
            "u ** (degree - k) * t**k",
            "u**k * t ** (degree - k)",
        ),
    ),
    *_faults(
        "rag_middle/ops/rope.py",
        ("sign of a rotation", "second * cos + first * sin", "second * cos - first * sin"),
        (
            "sign of interleaved tables",
            "torch.stack((-sin, sin), dim=-1)",
            "torch.stack((sin, -sin), dim=-1)",
        ),
    ),
    # -- methods -----------------------------------------------------------------------------------
    *_faults(
        f"{M}/ms_poe/attention.py",
        ("padding counts in the mean", "threshold / tokens[..., None]", "threshold / n"),
        (
            "rank taken for order",
            'order if assign == "argsort" else order.argsort(dim=-1, stable=True)',
            "order",
        ),
        (
            "awareness in half precision",
            "as_factor(query.reshape(b * g, h // g, d))",
            "as_factor(query.bfloat16().float().reshape(b * g, h // g, d))",
        ),
    ),
    *_faults(
        f"{M}/ms_poe/attention.py",
        (
            "keys of a group take the last head's ratio",
            "of_heads[:, :: heads // groups]",
            "of_heads[:, heads // groups - 1 :: heads // groups]",
        ),
    ),
    *_faults(
        f"{M}/siw/attention.py",
        (
            "factor instead of its excess",
            "((factors - 1)[:, None] * weight)",
            "(factors[:, None] * weight)",
        ),
        ("value of the padding", "device), :, columns]", "device), :, 0]"),
        (
            "sparse areas weighed as dense ones",
            "masked_fill_(density < 0, alphas[1])",
            "masked_fill_(density < 0, alphas[0])",
        ),
    ),
    *_faults(
        f"{M}/siw/__init__.py",
        ("edge of a document for its centre", "(index + 0.5) / count", "index / count"),
    ),
    *_faults(
        f"{M}/pine/__init__.py",
        (
            "documents not sorted",
            "sorted(range(len(documents)), key=documents.__getitem__)",
            "list(range(len(documents)))",
        ),
    ),
    *_faults(
        f"{M}/pine/attention.py",
        ("sign of the sinks", "torch.sigmoid(lse - sinks", "torch.sigmoid(sinks - lse"),
    ),
    *_faults(
        f"{M}/pine/kernels/importance.py",
        ("least important document nearest", "descending=True", "descending=False"),
    ),
    *_faults(
        f"{M}/pine/kernels/attend.py",
        (
            "window of re-assigned distances off by one",
            "key_positions >= self.rule.window",
            "key_positions > self.rule.window",
        ),
    ),
    *_faults(
        f"{M}/rotor/kernels/circle.py",
        ("prefix not moved back", "return distance + moved", "return distance"),
    ),
    *_faults(
        f"{M}/self_extend/kernels.py",
        (
            "neighbourhood one token too long",
            "distance[:, low:high] < window",
            "distance[:, low:high] <= window",
        ),
    ),
    *_faults(
        f"{M}/self_extend/attention.py",
        ("grouped queries not shifted", "grouped + shift", "grouped"),
        ("length counted without the token", "(tokens(columns) + 1)", "tokens(columns)"),
    ),
    *_faults(
        f"{M}/moice/attention.py",
        ("experts summed instead of averaged", "1 / experts, device", "1.0, device"),
    ),
    *_faults(
        f"{M}/document_blocks/kernels.py",
        (
            "later tokens continue after the shortest document",
            "max(layout.document_lengths)",
            "min(layout.document_lengths)",
        ),
    ),
    *_faults(
        f"{M}/positional_hidden_states/attention.py",
        ("whole channel added, not its excess", "(self._method.factor - 1)", "self._method.factor"),
    ),
    *_faults(
        f"{M}/scales.py",
        (
            "no check for rotary positions",
            'require_rope("position_interpolation", traits)',
            "pass",
        ),
        ("first layer's factor everywhere", "scale=factors[layer]", "scale=factors[0]"),
    ),
    *_faults(
        f"{M}/orders.py",
        (
            "orders averaged over the vocabulary",
            "logits.log_softmax(-1).mean(-2)",
            "logits.log_softmax(-2).mean(-2)",
        ),
        ("document and position swapped", "zip(positions, ranked", "zip(ranked, positions"),
        ("best document first", "1 if self.best_last else -1", "-1 if self.best_last else 1"),
        ("second half not reversed", "ranked[1::2][::-1]", "ranked[1::2]"),
    ),
    # -- generation, tokens, documents -------------------------------------------------------------
    *_faults(
        f"{G}/prompts.py",
        (
            "one token more than the window",
            "max_new_tokens - context_window\n",
            "max_new_tokens - context_window - 1\n",
        ),
        ("earlier of equal documents dropped", "relevance[i], -i)", "relevance[i], i)"),
    ),
    *_faults(
        f"{G}/forward.py",
        ("softmax over tokens", "logits.log_softmax(dim=-1)", "logits.log_softmax(dim=1)"),
    ),
    *_faults(
        f"{G}/processors.py",
        ("temperature multiplied", "keepdim=True)) / temperature", "keepdim=True)) * temperature"),
        ("top_p without effect", "if options.top_p < 1:", "if options.top_p > 1:"),
    ),
    *_faults(
        f"{G}/processors.py",
        ("prompt searched for stop strings", "input_ids[:, self.width :]", "input_ids"),
    ),
    *_faults(
        f"{G}/results.py",
        (
            "first token counted as decoded",
            "self.usage.completion_tokens - 1",
            "self.usage.completion_tokens",
        ),
    ),
    *_faults(
        f"{G}/requests.py",
        ("batches one row too small", "rows[index] > most", "rows[index] >= most"),
    ),
    *_faults(
        f"{G}/shared_prefixes.py",
        (
            "a shared prefix beyond what is computed",
            "[prompt.input_ids[:-1] for prompt in prompts]",
            "[prompt.input_ids for prompt in prompts]",
        ),
        ("states shared between methods", " if plans[source] == plans[index]", ""),
    ),
    *_faults(
        f"{M}/document_blocks/document_cache.py",
        (
            "states shared between prefixes",
            "{known_as}|{prefix}|{ids}",
            "{known_as}|{ids}",
        ),
        ("limit of memory ignored", "self._bytes > self.max_bytes", "False"),
    ),
    *_faults(
        "rag_middle/tokens/text.py",
        (
            "a token of text taken for the start",
            "return whole[:start]",
            "return whole[: start + 1]",
        ),
        (
            "added tokens that are not special can be written",
            "has_symbols and len(text) > 1",
            "False",
        ),
    ),
    *_faults(
        "rag_middle/documents.py",
        (
            "suffix not escaped",
            "literal(self.prefix) + shown + literal(self.suffix)",
            "literal(self.prefix) + shown + self.suffix",
        ),
    ),
    # -- retrieval, answering ----------------------------------------------------------------------
    *_faults(
        f"{R}/embedders.py",
        ("vectors not normalised", "normalize_embeddings=True", "normalize_embeddings=False"),
    ),
    *_faults(
        f"{R}/splitting.py",
        (
            "chunk ends one character early",
            '"end": before + end}',
            '"end": before + end - 1}',
        ),
        ("chunks overlap by nothing", "total > self.overlap", "total > 0"),
    ),
    *_faults(
        f"{R}/faiss_index.py",
        (
            "index of another embedder accepted",
            "if made_with != index.embedder.name:",
            "if False:",
        ),
    ),
    *_faults(
        "rag_middle/answering/results.py",
        (
            "title in the middle of a line cited",
            "|^[ \\t]{{0,2}}{name}",
            "|[ \\t]{{0,2}}{name}",
        ),
    ),
    # -- evaluation, calibration -------------------------------------------------------------------
    *_faults(
        f"{E}/metrics.py",
        (
            "arithmetic for harmonic mean",
            "2 * shared / (len(predicted) + len(wanted))",
            "shared / len(predicted) / 2 + shared / len(wanted) / 2",
        ),
        ("indefinite articles compared", "(a|an|the)", "(the)"),
    ),
    *_faults(
        f"{E}/statistics.py",
        ("interval of 90 % for 95 %", "outside = (1 - confidence) / 2", "outside = 1 - confidence"),
        ("gap over the wrong axis", "np.ptp(deviations, axis=1)", "np.ptp(deviations, axis=0)"),
        ("flips counted as agreement", "first != second for", "first == second for"),
    ),
    *_faults(
        f"{E}/conditions.py",
        (
            "last position never tried",
            "index * (documents - 1) // (count - 1)",
            "index * (documents - 1) // count",
        ),
    ),
    *_faults(
        f"{C}/curves.py",
        (
            "one generation too patient",
            "without_gain >= self.patience",
            "without_gain > self.patience",
        ),
    ),
    *_faults(
        f"{C}/result.py",
        ("before and after swapped", "before.right, after.right", "after.right, before.right"),
    ),
    *_faults(
        f"{C}/objective.py",
        (
            "weights of prompts ignored",
            "weights, likelihood = self._weights[part], None",
            "weights, likelihood = [Fraction(1) for _ in self._weights[part]], None",
        ),
    ),
    # -- integrations ------------------------------------------------------------------------------
    *_faults(
        f"{LANGCHAIN}/documents.py",
        ("second best document in the middle", "documents[1::2][::-1]", "documents[1::2]"),
    ),
    *_faults(
        f"{LANGCHAIN}/responses.py",
        (
            "tokens of prompt and answer swapped",
            "input_tokens=generation.usage.prompt_tokens",
            "input_tokens=generation.usage.completion_tokens",
        ),
    ),
    *_faults(
        "rag_middle/conventions/messages.py",
        ("documents of the first user message", "last = of_user[-1]", "last = of_user[0]"),
    ),
    *_faults(
        f"{LLAMA_INDEX}/packing.py",
        (
            "the next document not counted",
            "sum(map(tokens, pack)) + tokens(piece) > size",
            "sum(map(tokens, pack)) > size",
        ),
    ),
    *_faults(
        f"{LLAMA_INDEX}/nodes.py",
        ("fixed order without effect", "nodes = sorted(nodes, key=_rank)", "pass"),
    ),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a fault.

    Attributes:
        found_by: ``"short"`` or ``"long"`` suite; ``"neither"``; ``"text missing"`` where the file
            does not hold the fault's text once.
        test: the first that failed.
        seconds: of both runs.
    """

    fault: str
    path: str
    found_by: str
    test: str
    seconds: float


class Copies:
    """A copy of the repository for every thread."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers, self._local = folder, count(), local()

    def mine(self) -> Path:
        """The copy of this thread, made when it is first asked for."""
        if not hasattr(self._local, "copy"):
            copy = self._folder / str(next(self._numbers))
            ignored = shutil.ignore_patterns("__pycache__", ".*_cache")
            for name in COPIED:
                shutil.copytree(ROOT / name, copy / name, ignore=ignored)
            for path in ROOT.glob("*.*"):
                if path.is_file():
                    shutil.copy(path, copy)
            self._local.copy = copy
        result: Path = self._local.copy
        return result


def first_failure(copy: Path, tests: Iterable[str], *, long: bool) -> str | None:
    """The test that fails first in a copy; None where all pass."""
    tests, chosen = tuple(tests), ("--all-pairs",) if long else ("-m", "not slow")
    if long and not any(test.startswith("tests/") for test in tests):
        chosen = ("-p", "tests.conftest", *chosen)  # whose option it is
    # What is loaded already brings plugins of pytest along.
    quiet = ("-x", "-v", "--tb=no", "-W", "ignore::pytest.PytestAssertRewriteWarning")
    arguments = (*quiet, "-p", "no:cacheprovider", "-p", "no:xdist", *chosen, *tests)
    shown = copy / "shown.txt"
    run = _FORKS.Process(target=_run_tests, args=(copy, arguments, shown))
    run.start()
    run.join()  # a test that hangs fails by its time limit
    if run.exitcode == 0:
        return None
    lines = shown.read_text(encoding="utf-8", errors="replace").splitlines()
    if failed := [line for line in lines if line.startswith(("FAILED ", "ERROR "))]:
        return failed[0].split(" ", 1)[1].split(" - ")[0]
    # A crash, or a time limit that had to end the process: the test that ran says nothing more.
    if running := [line for line in lines if re.match(r"(tests|integrations)/\S+::", line)]:
        return running[-1].split(" ", 1)[0]
    raise RuntimeError("pytest did not run:\n" + "\n".join(lines[-20:]))


#: Processes that have the large libraries loaded already, and nothing of this repository.
_FORKS = multiprocessing.get_context("forkserver")
_PRELOADED = ["numpy", "torch", "transformers"]


def _run_tests(copy: Path, arguments: Sequence[str], shown: Path) -> None:
    """Run pytest in a copy; exit with its status."""
    with shown.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(copy)
    folders = [
        str(copy / name) for name in ("", "integrations/langchain", "integrations/llama_index")
    ]
    sys.path[:0] = folders
    os.environ["PYTHONPATH"] = os.pathsep.join(folders)
    sys.dont_write_bytecode = True  # of files that change back within a second
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    import pytest

    sys.exit(int(pytest.main(list(arguments))))


def outcome(fault: Fault, copies: Copies) -> Outcome:
    """Put the fault into a copy, run its tests there, and put the text back."""
    started, copy = perf_counter(), copies.mine()
    path = copy / fault.path
    text = path.read_text(encoding="utf-8")
    if text.count(fault.old) != 1:
        print(f"TEXT MISSING: {fault.path} does not hold {fault.old!r} once", file=sys.stderr)
        return Outcome(fault.name, fault.path, "text missing", "", 0.0)
    path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    try:
        found_by, test = "short", first_failure(copy, fault.tests, long=False)
        if test is None:
            found_by, test = "long", first_failure(copy, fault.tests, long=True)
    finally:
        path.write_text(text, encoding="utf-8")
    result = Outcome(
        fault.name,
        fault.path,
        found_by if test else "neither",
        test or "",
        perf_counter() - started,
    )
    print(f"{result.found_by:8} {fault.path}: {fault.name} ({result.seconds:.0f} s)", flush=True)
    return result


def markdown(outcomes: list[Outcome], command: str) -> str:
    """The page of results."""
    by = {kind: sum(each.found_by == kind for each in outcomes) for kind in ("short", "long")}
    total, found = len(outcomes), sum(by.values())
    rows = [
        f"| `{each.path}` | {each.fault} | {each.found_by} | `{each.test or 'none'}` |"
        for each in outcomes
    ]
    return "\n".join(
        (
            "# Deliberate faults that the tests find",
            "",
            f"Of {total} faults, tests that are not slow find {by['short']} "
            f"({by['short'] / total:.0%}), all tests {found} ({found / total:.0%}). Each fault was "
            "put into a copy of the repository by itself, and the tests of its folder ran until "
            "the first failure; where the short suite found nothing, the long one followed, which "
            "contains it.",
            "",
            f"Repeat with `{command}`; the faults and the tests of each folder stand in that file.",
            "",
            "| file | fault | found by | first test that fails |",
            "| --- | --- | --- | --- |",
            *rows,
            "",
        )
    )


def main() -> None:
    """Try the faults, write the results, fail where one was not found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", help="a word of the faults' names or paths")
    parser.add_argument("--jobs", type=int, default=2, help="faults at a time")
    parser.add_argument("--continue", dest="resume", action="store_true", help="where it stopped")
    parser.add_argument("--output", type=Path, default=RESULTS, help="file name without suffix")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    _FORKS.set_forkserver_preload(_PRELOADED)
    state = arguments.output.with_suffix(".json")
    tried: list[Outcome] = []
    if arguments.resume and state.exists():
        tried = [Outcome(**each) for each in json.loads(state.read_text(encoding="utf-8"))]
    done = {(each.path, each.fault) for each in tried}
    faults = [
        fault
        for fault in FAULTS
        if arguments.only in f"{fault.path} {fault.name}" and (fault.path, fault.name) not in done
    ]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        copies = Copies(Path(folder))
        outcomes = list(tried)
        for result in pool.map(lambda fault: outcome(fault, copies), faults):
            outcomes.append(result)
            if not arguments.only:
                content = json.dumps([asdict(each) for each in outcomes], indent=1)
                state.write_text(content + "\n", encoding="utf-8")
        tests = sorted({each.test for each in outcomes if each.test})
        if tests and (test := first_failure(copies.mine(), tests, long=True)):
            sys.exit(f"{test} fails without any fault: it says nothing. Mend it, and try again.")
    if not arguments.only:
        page = markdown(outcomes, "python benchmarks/mutations.py")
        arguments.output.with_suffix(".md").write_text(page, encoding="utf-8")
    missed = [each for each in outcomes if each.found_by not in ("short", "long")]
    print(f"{len(outcomes) - len(missed)} of {len(outcomes)} found")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
