"""Folders of models whose files are damaged: one error of this package that names the file."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import logging as transformers_logging

from rag_middle import ContextPrompt, RagMiddleModel
from rag_middle.costs.gpus import GPUS
from rag_middle.costs.plan import plan_costs
from rag_middle.errors import ModelFormatError, PromptError, RagMiddleError
from rag_middle.generation.loading import load_config
from rag_middle.methods import NoMethod
from rag_middle.model_files import check_config
from tests.attacks.damaging import damaged
from tests.attacks.hostile import tries
from tests.families import FAMILIES
from tests.tokenizers import byte_level_bpe

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about what it reads

PROMPT = ContextPrompt("Read.\n", ["Paris is in France."], "Where?")
STRANGE: tuple[Any, ...] = (
    *(None, True, -1, 0, 7, 2**40, 10**14, 2**70, 1.5, float("inf"), float("nan")),
    *("x", [], [1, 2], {}),
)
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(transformers_logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    yield
    transformers_logging.set_verbosity(before)
    transformers_logging.enable_progress_bar()


def saved(name: str, folder: Path) -> Path:
    tokenizer = byte_level_bpe()
    tokenizer.chat_template = TEMPLATE
    FAMILIES[name].build(vocab_size=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture
def folder(llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama, tmp_path / "model"))


def use(folder: Path) -> None:
    model = RagMiddleModel.from_pretrained(folder, device="cpu")
    model.generate(PROMPT, max_new_tokens=1)


def plan(folder: Path) -> None:
    config = load_config(folder)
    check_config(str(folder), config)
    plan_costs(config, [NoMethod()], gpu=GPUS["a100"], documents=3, tokens=[100])


@pytest.mark.parametrize("name", ["llama", "falcon", "gptj", "gemma2", "mixtral", "bloom"])
@pytest.mark.one_in(3)
def test_configs(name: str, tmp_path: Path) -> None:
    path = saved(name, tmp_path) / "config.json"
    config = json.loads(path.read_text())
    rng = random.Random(name)
    refused = 0
    for _ in range(tries(20)):
        field = rng.choice([*config])
        changed = {**config, field: rng.choice(STRANGE)}
        if rng.random() < 0.1:
            del changed[field]
        path.write_text(json.dumps(changed))
        for attempt in (use, plan):
            try:
                attempt(tmp_path)
            except RagMiddleError:
                refused += 1
    assert refused


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.one_in(5)
def test_files_of_a_folder(file: str, folder: Path) -> None:
    path = folder / file
    content = json.loads(path.read_text())
    for seed in range(tries(25)):
        path.write_bytes(damaged(content, seed))
        with suppress(RagMiddleError):
            use(folder)


def test_tokenizers(folder: Path) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    for seed in range(tries(15)):
        path.write_bytes(damaged(content, seed))
        with suppress(RagMiddleError):
            use(folder)


def test_a_tokenizer_that_panics_when_it_is_loaded(folder: Path) -> None:
    """A panic of the library's Rust code is no `Exception`."""
    path = folder / "tokenizer.json"
    template = {"single": [{"SpecialToken": {"id": "X", "type_id": 0}}], "pair": []}
    post = {"type": "TemplateProcessing", "special_tokens": {}, **template}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"post_processor": post}))
    with pytest.raises(ModelFormatError, match=r"tokenizer\.json.*no entry found for key"):
        use(folder)


def test_a_tokenizer_that_panics_at_a_text(folder: Path) -> None:
    path = folder / "tokenizer.json"
    split = {"type": "Split", "pattern": {"Regex": "(x+x+)+y(?=z)"}, "behavior": "Isolated"}
    content = json.loads(path.read_text()) | {"pre_tokenizer": split | {"invert": False}}
    path.write_text(json.dumps(content))
    model = RagMiddleModel.from_pretrained(folder, device="cpu")
    with pytest.raises(PromptError, match=r"gave up on the text 'x+': .*retry-limit.*fetch"):
        model.count_tokens("x" * 40)


@pytest.mark.parametrize(
    "template",
    ["{% for m in messages %}", "{{ messages[9].x.y }}", "{{ 1/0 }}", "{{ f() }}", 7, {}],
)
def test_chat_templates(template: Any, folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    with pytest.raises(RagMiddleError, match="template"):
        RagMiddleModel.from_pretrained(folder, device="cpu").generate(
            [{"role": "user", "content": "Where?"}], max_new_tokens=1
        )


@pytest.mark.parametrize(
    ("changed", "field", "reason"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers", "from 1 to 1000"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers", "at most 1000"),
        ({"num_labels": 100_001}, "num_labels", "at most 100000"),
        ({"max_position_embeddings": 10**15}, "max_position_embeddings", "at most 67108864"),
        ({"num_local_experts": 10**5}, "num_local_experts", "at most 32768"),
        ({"n_routed_experts": 2**40}, "n_routed_experts", "at most 32768"),
        ({"num_nextn_predict_layers": 10**6}, "num_nextn_predict_layers", "at most 1000"),
        ({"n_ctx": 2**40}, "n_ctx", "at most 67108864"),
        ({"max_sequence_length": 2**40}, "max_sequence_length", "at most 67108864"),
        ({"attention_types": [[["global"] * 2, 10**6]]}, "attention_types", "got 2000000"),
        ({"attn_implementation": "evil/kernel"}, "attn_implementation", "names 'evil/kernel'"),
        ({"_attn_implementation": {"": "evil/k"}}, "_attn_implementation", "names 'evil/k'"),
        ({"hidden_size": "64"}, "hidden_size", "expected int, got str"),
        ({"num_attention_heads": -4}, "num_attention_heads", "from 1 to"),
        ({"vocab_size": None}, "vocab_size", "expected int"),
        ({"intermediate_size": [96]}, "intermediate_size", "expected int"),
        ({"hidden_size": 65, "head_dim": None}, None, "not a multiple of the number of attention"),
        ({"intermediate_size": 2**26}, None, "and the weights are"),
        ({"intermediate_size": 97}, None, "the weights have other shapes"),
        ({"num_hidden_layers": 4}, None, "16 tensors that the weights lack"),
    ],
)
def test_what_is_wrong_is_named(
    changed: dict[str, Any], field: str | None, reason: str, folder: Path
) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(ModelFormatError, match=reason) as caught:
        use(folder)
    assert (caught.value.file, caught.value.field) == ("config.json", field)


@pytest.mark.parametrize("field", ["attn_implementation", "_attn_implementation"])
def test_only_the_caller_names_kernels(field: str, folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: "evil/kernel"}))
    with pytest.raises(ModelFormatError, match="names 'evil/kernel'"):
        plan(folder)
    with pytest.raises(ModelFormatError, match="names 'evil/kernel'"):
        RagMiddleModel.from_pretrained(folder, device="cpu", trust_remote_code=True)
    load_config(folder, attn_implementation="evil/kernel")
