"""Files that strangers wrote or disks damaged: used, or refused by an error of this package.

Every kind of file is mutated from fixed seeds. What is not refused is used at once, so that nothing
is let in that fails later with something else.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from rag_middle import ContextPrompt, Document, RagMiddleModel
from rag_middle.answering import PromptTemplate
from rag_middle.calibration import journal
from rag_middle.calibration.journal import open_journal
from rag_middle.cli.prompt_file import read_prompt
from rag_middle.errors import (
    EvaluationDataError,
    EvaluationRecordsError,
    ProfileFormatError,
    RagMiddleError,
)
from rag_middle.evaluation import records
from rag_middle.evaluation.tasks import task_for_file
from rag_middle.evaluation.tasks.data_files import first_of, read_entries
from rag_middle.plain_data import parse_json
from rag_middle.profiles import read_profile
from tests.attacks.damaging import damaged
from tests.attacks.hostile import tries
from tests.tiny_models import build, tiny
from tests.tokenizers import byte_level_bpe

MUTATIONS = tries(40)
IDENTITY = {"search": {"a": 1}, "seed": 0}
PROMPT = ContextPrompt("Read.\n", ["Paris is in France.", "Lyon is a town."], "Where?")
OPTIONS: dict[str, dict[str, Any]] = {
    "siw": {
        "alpha_dense": 0.5,
        "alpha_sparse": 1.2,
        "layers": [0, 1],
        "dense_areas": {"0": [True, False], "1": [False, True]},
        "top_share": 0.3,
    },
    "lpes": {"factors": [1.2, 1.4]},
    "positional_hidden_states": {"channels": [3], "factor": -1.0, "layers": [0]},
    "position_interpolation": {"scale": 1.5, "layers": [0]},
    "ape": {"temperature": 0.9, "scale": 0.8},
    "permutation": {"seed": 3},
}
QUESTIONS: dict[str, dict[str, Any]] = {
    "own": {"question": "Where?", "answers": ["a"], "gold": "x", "distractors": ["y", "z"]},
    "benchmark": {
        "question": "Who?",
        "answers": ["W"],
        "ctxs": [{"title": "a", "text": "b", "isgold": True}, {"title": "c", "text": "d"}],
    },
    "pairs": {"ordered_kv_records": [["a", "b"], ["c", "d"]], "key": "a", "value": "b"},
}
PUBLISHED = Path(__file__).parents[1] / "evaluation" / "published"
for file in (
    *("ruler_qa.jsonl", "helmet_rag.jsonl", "helmet_json_kv.jsonl", "helmet_niah.jsonl"),
    *("longbench_v2.json", "mrcr_openai.jsonl", "nolima/needlesets/needle_set.json"),
):
    QUESTIONS[Path(file).stem] = first_of(read_entries, PUBLISHED / file)[1]
Use = Callable[[bytes], object]


@pytest.fixture(scope="module")
def model() -> RagMiddleModel:
    tokenizer = byte_level_bpe()
    config = tiny(LlamaConfig, vocab_size=len(tokenizer), num_hidden_layers=2)
    return RagMiddleModel(build("attacked", config, "sdpa"), tokenizer)


def attack(content: Any, use: Use) -> None:
    """Use the content as it is, and mutated: no exception but this package's own."""
    use(json.dumps(content).encode())
    refused = 0
    for seed in range(MUTATIONS):
        try:
            use(damaged(content, seed))
        except RagMiddleError:
            refused += 1
    assert refused


def profile_of(method: str, model: RagMiddleModel) -> dict[str, Any]:
    config: Any = model.model.config
    return {
        "format": "rag-middle profile",
        "version": 1,
        "method": method,
        "options": OPTIONS[method],
        "model": {
            "id": "x",
            "model_type": "llama",
            "layers": config.num_hidden_layers,
            "hidden_size": config.hidden_size,
        },
        "note": "",
        "seed": 0,
        "search": {"trace": [1]},
    }


@pytest.mark.filterwarnings("ignore::rag_middle.generation.ProfileWarning")
@pytest.mark.parametrize("method", OPTIONS)
def test_profiles(method: str, model: RagMiddleModel, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"

    def use(content: bytes) -> None:
        path.write_bytes(content)
        model.generate(PROMPT, method=f"profile:{path}", max_new_tokens=1)

    attack(profile_of(method, model), use)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dense_areas": {"0": 7}}, r"dense_areas\[0\] must be several flags, got 7"),
        ({"dense_areas": {"0": [0.5]}}, r"dense_areas\[0\] must hold at least one flag"),
        ({"dense_areas": {"0": []}}, r"dense_areas\[0\] must hold at least one flag"),
        ({"dense_areas": [True]}, "dense_areas must say for each layer"),
        ({"alpha_dense": 2**70}, "alpha_dense must be a finite number"),
        ({"layers": [2**70]}, "must be a whole number"),
        ({"0": 1}, "must be a mapping from names to values"),
    ],
)
def test_what_is_wrong_in_a_profile_is_named(
    model: RagMiddleModel, tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({**profile_of("siw", model), "options": options}))
    with pytest.raises(RagMiddleError, match=words):
        model.checked_method(f"profile:{path}")


def test_deep_nesting_is_named(model: RagMiddleModel, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ProfileFormatError, match="nested too deeply"):
        model.checked_method(f"profile:{path}")
    with pytest.raises(ValueError, match="surrogates not allowed"):
        parse_json('{"a": "\\ud800"}')
    assert parse_json('"\\ud83d\\ude00"') == "\N{GRINNING FACE}"


def test_a_key_that_stands_twice_is_refused_and_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="key 'a' more than once"):
        parse_json('{"b": [{"a": 1, "a": 1}]}')
    assert parse_json('{"a": 1, "a": 2}', repeated_keys=True) == {"a": 2}
    line = '{"question": "?", "answer": "x", "gold": "a", "distractors": ["b"]'
    questions = tmp_path / "questions.jsonl"
    questions.write_text(f'{line}}}\n{line}, "answer": "y"}}\n')
    with pytest.raises(EvaluationDataError, match=r"jsonl:2 .* 'answer' more than once"):
        task_for_file(questions, documents=2).items(None, 0)
    table = tmp_path / "questions.csv"
    table.write_text("question,answer,answer\n?,x,y\n")
    with pytest.raises(EvaluationDataError, match="more than one column 'answer'"):
        next(read_entries(table))
    profile = tmp_path / "profile.json"
    profile.write_text('{"format": 1, "format": 1}')
    with pytest.raises(ProfileFormatError, match="'format' more than once"):
        read_profile(profile)


def test_prompt_files(model: RagMiddleModel, tmp_path: Path) -> None:
    path = tmp_path / "prompt.json"

    def use(content: bytes) -> None:
        path.write_bytes(content)
        model.encode(read_prompt(str(path)))

    document = {"title": "L", "text": "t", "id": "d", "metadata": {"score": 0.5}}
    attack({"prefix": "a", "documents": [document, "N"], "suffix": "Q"}, use)


def test_prompt_templates(model: RagMiddleModel, tmp_path: Path) -> None:
    path = tmp_path / "template.json"

    def use(content: bytes) -> None:
        path.write_bytes(content)
        template = PromptTemplate.load(path)
        model.encode(template.prompt("Why?", [Document("x", title="y")]))

    attack({"prefix": "a", "document": "{title}\n{text}", "suffix": "{question}"}, use)


@pytest.mark.parametrize("kind", QUESTIONS)
def test_questions(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "needlesets" / "questions.jsonl"
    path.parent.mkdir()
    (tmp_path / "haystack").symlink_to(PUBLISHED / "nolima" / "haystack")
    valid = json.dumps(QUESTIONS[kind]).encode()

    def use(content: bytes) -> None:
        path.write_bytes(content + b"\n" + valid)
        task = task_for_file(path)
        for item in task.items(2, 0):
            for condition in task.conditions():
                task.prompt(item, condition)

    attack(QUESTIONS[kind], use)


def test_records_of_an_evaluation(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    header = {"kind": "header", "format": records.FORMAT, **IDENTITY}
    record = {
        "kind": "record",
        "method": "pine",
        "condition": "gold 0",
        "item": "1",
        "scores": {"best_em": 1.0},
        "answer": "x",
        "prompt_tokens": 5,
        "applied": True,
        "withheld": True,
    }

    def use(content: bytes, before: bytes = b"") -> None:
        path.write_bytes(before + content.replace(b"\n", b" ") + b"\n")
        with records.open_records(path, IDENTITY) as kept:
            if ("pine", "gold 0", "1") in kept:
                answered = kept["pine", "gold 0", "1"]
                assert math.isfinite(sum(answered.scores.values()))
                assert isinstance(answered.answer, str | None)
                assert answered.prompt_tokens >= 0

    first = json.dumps(header).encode() + b"\n"
    attack(header, use)
    attack(record, lambda content: use(content, first))
    attack({"kind": "method", "label": "a", "method": "b"}, lambda content: use(content, first))
    for depth in (400, 700, 950):  # Python reads more levels of nesting than it can write
        nested = json.dumps({**record, "item": 0}).replace(": 0", ": " + "[" * depth + "]" * depth)
        with pytest.raises(EvaluationRecordsError):
            use(nested.encode(), first)


def test_the_state_of_a_search(tmp_path: Path) -> None:
    path = tmp_path / "lpes.state"

    def line(content: bytes) -> bytes:  # forged, with a right check sum
        content = content.replace(b"\n", b" ")
        return b"%08x " % zlib.crc32(content) + content + b"\n"

    def use(content: bytes, before: bytes = b"") -> None:
        path.write_bytes(before + line(content))
        with open_journal(path, IDENTITY) as kept:
            if "k" in kept:
                outcome = kept["k"]
                assert outcome.prompts >= 0

    header = {"format": journal._FORMAT, "identity": IDENTITY}
    first = line(json.dumps(header).encode())
    outcome = {"score": 0.5, "complete": True, "right": "10-", "log_likelihood": -1.0}
    attack(header, use)
    attack({"key": "k", "outcome": outcome}, lambda content: use(content, first))
