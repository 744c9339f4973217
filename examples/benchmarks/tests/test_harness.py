"""lm-evaluation-harness over a model under a method, offline, with a local task."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from copy import deepcopy
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from rag_middle.documents import mark
from rag_middle.errors import ConfigError, MethodConfigError
from rag_middle.generation import RagMiddleModel, UnreadMarkersWarning
from tests.tiny_models import saved, speaking
from tests.tokenizers import byte_level_bpe

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of packages that the harness imports
    lm_eval = pytest.importorskip("lm_eval", reason="needs lm-eval (extra eval)")
    from lm_eval.models.huggingface import HFLM
    from rag_middle_benchmarks.harness import RagMiddleLM

pytestmark = pytest.mark.filterwarnings("ignore")  # the harness and its packages warn freely

PAIRS = [
    ("The quick brown", " fox jumps"),
    ("Paris is the capital of", " France"),
    ("", "Lyon lies on the river."),
    ("Question: which of the documents? Answer: ", "the first"),
]
MARKED = f"{mark('Paris lies here.')}\n{mark('Lyon.')}\nWhich river?"
BY_HAND = "[[rm:doc]]Paris lies here.[[/rm:doc]]\n[[rm:doc]]Lyon.[[/rm:doc]]\nWhich river?"


def request(*args: Any) -> Any:
    return SimpleNamespace(args=args)


@pytest.fixture(scope="module")
def model() -> RagMiddleModel:
    """Three layers, random weights."""
    return speaking("harness", byte_level_bpe(bos=True), max_position_embeddings=4096)


@pytest.fixture(scope="module")
def theirs(model: RagMiddleModel) -> Any:
    return HFLM(pretrained=model.model, tokenizer=model.tokenizer, batch_size=1)


def test_without_a_method_scores_are_those_of_the_harness(
    model: RagMiddleModel, theirs: Any
) -> None:
    ours = RagMiddleLM(model).loglikelihood([request(*pair) for pair in PAIRS], disable_tqdm=True)
    expected = theirs.loglikelihood([request(*pair) for pair in PAIRS], disable_tqdm=True)
    for (value, greedy), (wanted, wanted_greedy) in zip(ours, expected, strict=True):
        assert value == pytest.approx(wanted, abs=1e-3)  # float32, other batches
        assert greedy == wanted_greedy


def test_a_method_changes_scores_and_marked_documents_reach_it(model: RagMiddleModel) -> None:
    plain, pine = RagMiddleLM(model), RagMiddleLM(model, method="pine")
    pairs = [request(MARKED, " the Rhône"), request("No documents", " here")]
    base, changed = plain.loglikelihood(pairs, True), pine.loglikelihood(pairs, True)
    wanted = model.score(MARKED, " the Rhône", method="pine", template="raw")
    assert changed[0][0] == pytest.approx(wanted.total, abs=1e-4)
    assert changed[0][0] != pytest.approx(base[0][0], abs=1e-3)
    assert changed[1][0] == pytest.approx(base[1][0], abs=1e-4)


def test_marked_contexts_keep_to_the_length_and_to_the_harness_about_spaces(
    model: RagMiddleModel,
) -> None:
    river = "Lyon lies here on the river, as it did before. "
    long = request("\n".join(mark(river * count) for count in (1, 1, 2)) + "\nWhich?", " the Rhône")
    short = RagMiddleLM(model, max_length=64).loglikelihood([long], True)
    cut = RagMiddleModel(model.model, model.tokenizer, context_window=64)
    wanted = cut.score(*long.args, template="raw", on_overflow="drop_documents").total
    assert short[0][0] == pytest.approx(wanted, abs=1e-4)
    assert RagMiddleLM(model).loglikelihood([long], True)[0][0] != pytest.approx(wanted, abs=1e-3)
    pairs = [request(f"{MARKED} ", "the Rhône"), request(MARKED, " the Rhône")]
    spaced, moved = RagMiddleLM(model).loglikelihood(pairs, True)
    assert spaced == pytest.approx(moved, abs=1e-4)


def test_markers_of_a_template_count_where_that_is_asked_for(
    model: RagMiddleModel, theirs: Any
) -> None:
    pair = request(BY_HAND, " the Rhône")
    [(trusted, _)] = RagMiddleLM(model, trust_markers=True).loglikelihood([pair], True)
    wanted = model.score(MARKED, " the Rhône", template="raw").total
    assert trusted == pytest.approx(wanted, abs=1e-4)
    with pytest.warns(UnreadMarkersWarning):
        [(plain, _)] = RagMiddleLM(model).loglikelihood([pair], True)
    assert plain == pytest.approx(theirs.loglikelihood([pair], disable_tqdm=True)[0][0], abs=1e-3)


def test_texts_are_generated_up_to_a_stop_string(model: RagMiddleModel) -> None:
    ours = RagMiddleLM(model, batch_size=2)
    free = {"until": [], "max_gen_toks": 6, "do_sample": False}
    [text] = ours.generate_until([request("The quick brown", free)])
    tokens = ours.tok_encode("The quick brown")
    with torch.no_grad():
        generate: Any = model.model.generate
        wanted = generate(
            torch.tensor([tokens]), max_new_tokens=6, do_sample=False, pad_token_id=0
        )[0, len(tokens) :]
    assert text == model.tokenizer.decode(wanted, skip_special_tokens=True)
    stopped = {**free, "until": [text[2]]}
    both = ours.generate_until([request("The quick brown", stopped), request(MARKED, free)])
    assert both[0] == text[: text.index(text[2])]
    assert both[1] == model.generate(MARKED, template="raw", max_new_tokens=6).text


@pytest.mark.parametrize(
    "asked",
    [
        {"max_gen_toks": 24, "do_sample": False},
        {"max_new_tokens": 24, "until": None},
        {"max_gen_toks": 24, "temperature": "0.0"},
        {"max_gen_toks": 24, "repetition_penalty": 1.3},
        {"max_gen_toks": 12, "num_beams": 1},
    ],
    ids=str,
)
@pytest.mark.one_in(5)
def test_the_models_generation_config_counts_as_in_the_harness(
    model: RagMiddleModel, asked: dict[str, Any]
) -> None:
    llama = deepcopy(model.model)
    llama.generation_config = GenerationConfig(
        pad_token_id=0, do_sample=True, temperature=0.7, top_p=0.8, repetition_penalty=1.1
    )
    theirs = HFLM(pretrained=llama, tokenizer=model.tokenizer, batch_size=1)
    ours = RagMiddleLM(RagMiddleModel(llama, model.tokenizer))
    # Where their own model fails at the form of a request, another form of the same is compared.
    usual = {"until": [], **asked, "max_gen_toks": asked.get("max_gen_toks", 24)}
    usual = {k: v for k, v in usual.items() if k != "max_new_tokens"} | {"until": ["\n\n\n\n"]}
    usual["temperature"] = 0.0
    for text in ("The quick brown", "Paris is the capital of"):
        [wanted] = theirs.generate_until([request(text, dict(usual))], disable_tqdm=True)
        [got] = ours.generate_until([request(text, {"until": ["\n\n\n\n"], **asked})])
        assert got == wanted


@pytest.mark.parametrize("window", [8, 16])
@pytest.mark.one_in(2)
def test_what_exceeds_the_window_is_cut_as_the_harness_does(
    model: RagMiddleModel, window: int
) -> None:
    theirs = HFLM(
        pretrained=model.model, tokenizer=model.tokenizer, batch_size=1, max_length=window
    )
    ours = RagMiddleLM(model, max_length=window)
    context = "The quick brown fox jumps over the lazy dog. Paris is the capital of"
    assert len(ours.tok_encode(context)) > window
    for cut in range(0, 60, 3):
        pair = request(context[cut:], " France")
        [(wanted, _)] = theirs.loglikelihood([pair], disable_tqdm=True)
        [(got, _)] = ours.loglikelihood([pair], True)
        assert got == pytest.approx(wanted, abs=1e-3)
    whole = request(context)
    [total] = ours.loglikelihood_rolling([whole], True)
    assert total == pytest.approx(
        theirs.loglikelihood_rolling([whole], disable_tqdm=True)[0], abs=1e-3
    )


def test_documents_of_earlier_turns_are_text(model: RagMiddleModel) -> None:
    tokenizer = deepcopy(model.tokenizer)
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    ours = RagMiddleLM(RagMiddleModel(model.model, tokenizer), method="rotor", trust_markers=True)
    for marked in (MARKED, BY_HAND):
        example = {"role": "user", "content": marked.replace("Paris", "Nantes")}
        answer = {"role": "assistant", "content": "The Loire."}
        system = {"role": "system", "content": "Be short."}
        last = {"role": "user", "content": marked}
        text = ours.apply_chat_template([system, example, answer, last])
        prompt = ours._parsed(text)
        assert [d.text for d in prompt.documents] == ["Paris lies here.", "Lyon."]
        assert "user: Nantes lies here.\nLyon.\nWhich river?\n" in prompt.prefix
        [(value, _)] = ours.loglikelihood([request(text, " The Seine")], True)
        assert value < 0
        # Documents that only an earlier turn has are documents, as in conversations.
        later = {"role": "user", "content": "Sure?"}
        assert len(ours._parsed(ours.apply_chat_template([last, answer, later])).documents) == 2


def local_task(folder: Path) -> Path:
    data = folder / "data.jsonl"
    lines = [{"q": "Paris is the capital of", "choices": ["France", "Lyon"], "label": 0}] * 3
    data.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    task = folder / "local.yaml"
    task.write_text(
        "task: rag_middle_local\n"
        "dataset_path: json\n"
        f"dataset_kwargs:\n  data_files:\n    test: {data}\n"
        "test_split: test\n"
        "output_type: multiple_choice\n"
        'doc_to_text: "{{q}}"\n'
        "doc_to_choice: choices\n"
        "doc_to_target: label\n"
        "metric_list:\n  - metric: acc\n",
        encoding="utf-8",
    )
    return task


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_plain_command_finds_the_model(model: RagMiddleModel, tmp_path: Path) -> None:
    folder = saved(model, tmp_path / "model")
    plugin = files("rag_middle_benchmarks") / "lm_eval.yaml"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "lm_eval", "run", "--model", "rag-middle", "--device", "cpu"),
            *("--model_args", f"pretrained={folder},method=lpes,method_factors=1.2"),
            *("--tasks", f"{plugin},{local_task(tmp_path)}", "--output_path", tmp_path / "out"),
        ],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [written] = (tmp_path / "out").rglob("results_*.json")
    results = json.loads(written.read_text(encoding="utf-8"))
    assert results["config"]["model"] == "rag-middle"
    assert results["results"]["rag_middle_local"]["acc,none"] in (0.0, 1.0)


def test_arguments_that_do_not_exist_are_refused(model: RagMiddleModel) -> None:
    with pytest.raises(ConfigError, match="'parallelize'"):
        RagMiddleLM(model, parallelize=True)
    with pytest.raises(ConfigError, match="batch_size"):
        RagMiddleLM(model, batch_size="auto")
    with pytest.raises(MethodConfigError, match="factor"):
        RagMiddleLM(model, method="lpes", method_factor=1.2)
    ours = RagMiddleLM(model)
    with pytest.raises(ConfigError, match="min_p"):
        ours.generate_until([request("a", {"min_p": 0.5})])
    with pytest.raises(ConfigError, match="max_gen_toks"):
        ours.generate_until([request("a", {"max_gen_toks": 99_999})])
