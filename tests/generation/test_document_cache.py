"""Documents read once: the same logits, less work, and files that hold what they say."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from transformers import LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

from rag_middle import ContextPrompt, DocumentCache
from rag_middle.errors import UnsupportedGenerationError
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import APE, Method, ParallelContextWindows
from rag_middle.methods.parallel_context import document_cache
from rag_middle.methods.parallel_context.document_states import DocumentStates
from tests.adapters import PromptTuned
from tests.contract.running import distance
from tests.tiny_models import build, tiny

NEW = 6
TOLERANCE = 1e-4  # float32 sums in another order
APART: dict[str, Method] = {
    "parallel_context_windows": ParallelContextWindows(),
    "ape": APE(temperature=0.6, scale=0.8),
}


@pytest.fixture
def cache() -> DocumentCache:
    return DocumentCache()


@pytest.fixture
def caching(
    llama: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, cache: DocumentCache
) -> RagMiddleModel:
    return RagMiddleModel(llama, tokenizer, document_cache=cache)


@pytest.mark.parametrize("method", APART)
def test_logits_are_the_same_with_and_without(
    method: str,
    model: RagMiddleModel,
    caching: RagMiddleModel,
    cache: DocumentCache,
    prompt: ContextPrompt,
) -> None:
    chosen = APART[method]
    expected = model.logits(prompt, method=chosen)
    generation = model.generate(prompt, method=chosen, max_new_tokens=NEW)
    score = model.score(prompt, " Lyon", method=chosen)
    for hits in (0, 4):  # nothing known, then the prefix and three documents
        known = cache.hits
        assert distance(caching.logits(prompt, method=chosen), expected) < TOLERANCE
        assert cache.hits - known == hits
    again = caching.generate(prompt, method=chosen, max_new_tokens=NEW)
    assert again.token_ids == generation.token_ids
    assert again.usage == generation.usage
    cached = caching.score(prompt, " Lyon", method=chosen)
    assert cached.log_probabilities == pytest.approx(score.log_probabilities, abs=TOLERANCE)
    assert cache.misses == 4


@pytest.mark.parametrize("what", ["logits", "score"])
@pytest.mark.parametrize(
    "method", ["ape", "parallel_context_windows", "set_based_prompting", "cacheblend"]
)
def test_virtual_tokens_behind_cached_documents_are_refused(
    method: str,
    what: str,
    llama: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    cache: DocumentCache,
    prompt: ContextPrompt,
) -> None:
    tuned: Any = PromptTuned(llama)
    caching = RagMiddleModel(tuned, tokenizer, self_check=False, document_cache=cache)
    more = (" Lyon",) if what == "score" else ()
    with pytest.raises(UnsupportedGenerationError, match="virtual tokens"):
        getattr(caching, what)(prompt, *more, method=method)


@pytest.mark.parametrize(
    "options", [{"num_beams": 3}, {"temperature": 0.8, "seed": 3}], ids=["beams", "drawn"]
)
def test_batches_and_other_ways_of_generating(
    options: dict[str, Any],
    model: RagMiddleModel,
    caching: RagMiddleModel,
    prompts: list[ContextPrompt],
) -> None:
    expected = model.batch(prompts, method="ape", max_new_tokens=NEW, **options)
    for _ in range(2):
        found = caching.batch(prompts, method="ape", max_new_tokens=NEW, **options)
        assert [each.token_ids for each in found] == [each.token_ids for each in expected]
    assert caching.stream(prompts[0], method="ape", max_new_tokens=NEW).result.text == (
        model.generate(prompts[0], method="ape", max_new_tokens=NEW).text
    )


def test_a_composition_is_served_where_the_other_method_only_reorders(
    model: RagMiddleModel, caching: RagMiddleModel, cache: DocumentCache, prompt: ContextPrompt
) -> None:
    expected = model.logits(prompt, method="long_context_reorder+ape")
    for hits in (0, 4):
        logits = caching.logits(prompt, method="long_context_reorder+ape")
        assert distance(logits, expected) < TOLERANCE
        assert cache.hits == hits


def test_documents_are_shared_by_questions_orders_and_methods(
    caching: RagMiddleModel, cache: DocumentCache, prompt: ContextPrompt
) -> None:
    caching.logits(prompt, method="ape")
    other = ContextPrompt(
        prompt.prefix, prompt.documents[::-1][:2], "Another question?", prompt.separator
    )
    caching.logits(other, method="parallel_context_windows")
    assert (cache.misses, cache.hits) == (4, 3)
    # Another prefix is another place to read from.
    caching.logits(ContextPrompt("Read.\n", prompt.documents, "Why?"), method="ape")
    assert cache.misses == 8


def test_only_tokens_behind_known_documents_go_through_the_model(
    caching: RagMiddleModel, llama: PreTrainedModel, prompt: ContextPrompt
) -> None:
    seen: list[int] = []
    handle = llama.register_forward_pre_hook(
        lambda _module, _args, kwargs: seen.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        caching.logits(prompt, method="ape")
        seen.clear()
        caching.generate(prompt, method="ape", max_new_tokens=2)
    finally:
        handle.remove()
    suffix = len(caching.encode(prompt).suffix_ids)
    assert seen == [suffix, 1]


@pytest.mark.parametrize("method", ["none", "pine", "no_inter_document_attention"])
def test_other_methods_leave_the_cache_alone(
    method: str, caching: RagMiddleModel, cache: DocumentCache, prompt: ContextPrompt
) -> None:
    caching.generate(prompt, method=method, max_new_tokens=1)
    caching.logits(prompt, method=ParallelContextWindows(right_indentation=True))
    caching.logits(prompt, method="ape", all_positions=True)
    caching.logits("No documents.", method="ape", on_missing_documents="ignore")
    assert (cache.hits, cache.misses) == (0, 0)


def test_changed_weights_and_other_models_have_states_of_their_own(
    tokenizer: PreTrainedTokenizerFast, cache: DocumentCache, prompt: ContextPrompt
) -> None:
    models = [
        build(name, tiny(LlamaConfig, vocab_size=len(tokenizer)), "sdpa") for name in ("a", "b")
    ]
    for model in models:
        caching = RagMiddleModel(model, tokenizer, document_cache=cache, self_check=False)
        plain = RagMiddleModel(model, tokenizer, self_check=False)
        for _ in range(2):
            expected = plain.logits(prompt, method="ape")
            assert distance(caching.logits(prompt, method="ape"), expected) < TOLERANCE
            with torch.no_grad():
                model.get_input_embeddings().weight.mul_(1.5)
    assert (cache.hits, cache.misses) == (0, 16)


class Adapter(torch.nn.Module):
    """As libraries of adapters put one around a layer, with a switch that is a plain attribute."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.extra = torch.nn.Linear(base.in_features, base.out_features)
        self._active_adapter = ["x"]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.base(hidden)
        return out if not self._active_adapter else out + self.extra(hidden)


@torch.no_grad()
def test_adapters_and_edits_past_the_version_counter_have_states_of_their_own(
    tokenizer: PreTrainedTokenizerFast, cache: DocumentCache, prompt: ContextPrompt
) -> None:
    network: Any = build("adapted", tiny(LlamaConfig, vocab_size=len(tokenizer)), "sdpa")
    attention = network.model.layers[0].self_attn
    attention.v_proj = Adapter(attention.v_proj)
    caching = RagMiddleModel(network, tokenizer, document_cache=cache, self_check=False)
    plain = RagMiddleModel(network, tokenizer, self_check=False)

    def check(hits: int) -> torch.Tensor:
        expected = plain.logits(prompt, method="ape")
        before = cache.hits
        assert distance(caching.logits(prompt, method="ape"), expected) < TOLERANCE
        assert cache.hits - before == hits
        return expected

    adapted = check(hits=0)
    attention.v_proj._active_adapter = []
    assert distance(check(hits=0), adapted) > 100 * TOLERANCE
    attention.v_proj._active_adapter = ["x"]
    check(hits=4)
    network.model.layers[1].mlp.up_proj.weight.data.mul_(1.5)
    assert distance(check(hits=0), adapted) > 100 * TOLERANCE


def test_a_model_that_moved_has_no_states_from_where_it_was(
    caching: RagMiddleModel,
    cache: DocumentCache,
    prompt: ContextPrompt,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache.directory = tmp_path  # files serve it wherever it is
    expected = caching.logits(prompt, method="ape")
    in_memory: tuple[dict[Any, DocumentStates], ...] = (cache._kept, cache._examples)
    for kept in in_memory:
        for key, states in kept.items():  # there is no second device here but "meta"
            kept[key] = DocumentStates(
                keys=tuple(tensor.to("meta") for tensor in states.keys),
                values=tuple(tensor.to("meta") for tensor in states.values),
            )
    monkeypatch.setattr(document_cache, "_place", lambda _: "where it has gone")
    for hits in (4, 8):
        assert distance(caching.logits(prompt, method="ape"), expected) < TOLERANCE
        assert (cache.hits, cache.misses) == (hits, 4)


# -- memory ----------------------------------------------------------------------------------------


def test_the_least_recently_used_documents_are_dropped(
    llama: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompt: ContextPrompt
) -> None:
    whole = DocumentCache()
    RagMiddleModel(llama, tokenizer, document_cache=whole).logits(prompt, method="ape")
    small = DocumentCache(max_bytes=whole.nbytes // 2)
    model = RagMiddleModel(llama, tokenizer, document_cache=small)
    expected = model.logits(prompt, method="none")
    assert expected.isfinite().all()
    model.logits(prompt, method="ape")
    assert 0 < small.nbytes <= whole.nbytes // 2
    assert 0 < len(small) < len(whole)
    small.clear()
    assert (len(small), small.nbytes) == (0, 0)
    nothing = DocumentCache(max_bytes=0)
    caching = RagMiddleModel(llama, tokenizer, document_cache=nothing)
    caching.logits(prompt, method="ape")
    assert len(nothing) == 0


@pytest.mark.parametrize("max_bytes", [-1, 1.5, "1 GiB"])
def test_a_budget_is_a_number_of_bytes(max_bytes: Any) -> None:
    with pytest.raises(UnsupportedGenerationError, match="max_bytes must be a whole number"):
        DocumentCache(max_bytes=max_bytes)


# -- disk ------------------------------------------------------------------------------------------


def test_files_serve_a_later_process(
    llama: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompt: ContextPrompt,
    tmp_path: Path,
) -> None:
    expected = RagMiddleModel(llama, tokenizer).logits(prompt, method="ape")
    first = RagMiddleModel(
        llama, tokenizer, document_cache=DocumentCache(directory=tmp_path / "states")
    )
    assert first.precompute([prompt]) == 4
    files = sorted((tmp_path / "states").rglob("*"))
    assert {path.suffix for path in files if path.is_file()} == {".safetensors"}
    later = DocumentCache(directory=tmp_path / "states")
    second = RagMiddleModel(llama, tokenizer, document_cache=later)
    assert distance(second.logits(prompt, method="ape"), expected) < TOLERANCE
    assert (later.hits, later.misses) == (4, 0)
    assert second.precompute([prompt]) == 0


def _cut(data: bytes) -> bytes:
    return data[:-100]


def _flip_a_bit(data: bytes) -> bytes:
    return data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]


def _write_again(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[bytes], bytes]:
    """A file as whoever knows the format would forge it, its checksum made anew."""

    def forge(data: bytes) -> bytes:
        tensors = safetensors.torch.load(data)
        change(tensors)
        return document_cache._as_file(tensors, FORGED_KEY[0])

    return forge


def _other_heads(tensors: dict[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        tensors[name] = torch.cat([tensor, tensor])


FORGED_KEY = [""]
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "pickle": lambda _: b"\x80\x04K\x01.",
    "nested": lambda _: (9000).to_bytes(8, "little") + b"[" * 9000,
    "cut": _cut,
    "bit": _flip_a_bit,
    "heads": _write_again(_other_heads),
    "format": _write_again(lambda t: t.update({n: v.half() for n, v in t.items()})),
    "tokens": _write_again(lambda t: t.update({n: v[:, 1:].clone() for n, v in t.items()})),
    "one layer's tokens": _write_again(lambda t: t.update({"key.1": t["key.1"][:, 1:].clone()})),
    "more": _write_again(lambda t: t.update({"key.3": t["key.1"].clone()})),
    "fewer": _write_again(lambda t: t.pop("value.2")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_forged_file_is_computed_again(
    damage: str,
    llama: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompt: ContextPrompt,
    tmp_path: Path,
) -> None:
    expected = RagMiddleModel(llama, tokenizer).logits(prompt, method="ape")
    model = RagMiddleModel(llama, tokenizer, document_cache=DocumentCache(directory=tmp_path))
    model.precompute([prompt])
    files = sorted(tmp_path.rglob("*.safetensors"))
    whole = {file: file.read_bytes() for file in files}
    for file, data in whole.items():
        FORGED_KEY[0] = file.stem
        file.write_bytes(DAMAGES[damage](data))
    later = DocumentCache(directory=tmp_path)
    second = RagMiddleModel(llama, tokenizer, document_cache=later)
    with pytest.warns(UserWarning, match="is damaged"):
        logits = second.logits(prompt, method="ape")
    assert distance(logits, expected) < TOLERANCE
    assert (later.hits, later.misses) == (0, 4)
    assert {file: file.read_bytes() for file in files} == whole  # mended, too


def test_a_file_under_another_name_is_noticed(
    llama: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompt: ContextPrompt,
    tmp_path: Path,
) -> None:
    twice = ContextPrompt("Read.", ["One document.", "Two documents."[:13]], "Why?")
    model = RagMiddleModel(llama, tokenizer, document_cache=DocumentCache(directory=tmp_path))
    model.precompute([twice])
    files = sorted(tmp_path.rglob("*.safetensors"), key=lambda path: path.stat().st_size)
    files[-1].write_bytes(files[-2].read_bytes())
    later = RagMiddleModel(llama, tokenizer, document_cache=DocumentCache(directory=tmp_path))
    with pytest.warns(UserWarning, match="is damaged"):
        assert later.precompute([twice]) == 1


def test_a_file_longer_than_its_states_is_not_read_to_its_end(
    llama: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompt: ContextPrompt,
    tmp_path: Path,
) -> None:
    model = RagMiddleModel(llama, tokenizer, document_cache=DocumentCache(directory=tmp_path))
    model.precompute([prompt])
    for file in tmp_path.rglob("*.safetensors"):
        os.truncate(file, 2**40)  # takes no room on the disk
    later = RagMiddleModel(llama, tokenizer, document_cache=DocumentCache(directory=tmp_path))
    with pytest.warns(UserWarning, match="is damaged .it has more than"):
        later.precompute([prompt])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes in folders")
def test_a_pipe_under_a_files_name_is_not_waited_for(
    llama: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompt: ContextPrompt,
    tmp_path: Path,
) -> None:
    model = RagMiddleModel(llama, tokenizer, document_cache=DocumentCache(directory=tmp_path))
    model.precompute([prompt])
    for file in tmp_path.rglob("*.safetensors"):
        file.unlink()
        os.mkfifo(file)
    later = RagMiddleModel(llama, tokenizer, document_cache=DocumentCache(directory=tmp_path))
    with pytest.warns(UserWarning, match="no regular file"):
        later.precompute([prompt])


@pytest.fixture
def no_room() -> Iterator[None]:
    """No file may grow beyond a kilobyte, as on a full disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("no_room")
def test_a_full_disk_costs_no_answer(
    model: RagMiddleModel,
    llama: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompt: ContextPrompt,
    tmp_path: Path,
) -> None:
    cache = DocumentCache(directory=tmp_path)
    caching = RagMiddleModel(llama, tokenizer, document_cache=cache)
    expected = model.logits(prompt, method="ape")
    with pytest.warns(UserWarning, match="cannot be saved") as told:
        logits = caching.logits(prompt, method="ape")
    assert len(told) == 1
    assert distance(logits, expected) < TOLERANCE
    caching.logits(prompt, method="ape")  # a second warning would be an error
    assert cache.hits == 4
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    other = ContextPrompt("Read.", prompt.documents, "Which?")
    with pytest.raises(UnsupportedGenerationError, match="cannot be saved"):
        caching.precompute([other])  # which is asked for the files' sake


def test_a_folder_that_cannot_be_written_is_named(
    llama: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompt: ContextPrompt,
    tmp_path: Path,
) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("no folder")
    model = RagMiddleModel(llama, tokenizer, document_cache=DocumentCache(directory=occupied))
    with pytest.raises(UnsupportedGenerationError, match="cannot be saved"):
        model.precompute([prompt])
    again = RagMiddleModel(llama, tokenizer, document_cache=DocumentCache(directory=occupied))
    with pytest.warns(UserWarning, match="cannot be saved"):
        again.generate(prompt, method="ape", max_new_tokens=1)


@pytest.mark.slow  # starts a process that imports everything again
def test_a_writer_that_is_killed_leaves_nothing_half_written(tmp_path: Path) -> None:
    code = (
        "import sys, torch\n"
        "from rag_middle import DocumentCache\n"
        "from rag_middle.methods.parallel_context.document_states import DocumentStates\n"
        "one, other = [tuple(torch.ones(4, 8, 20_000, 16)) for _ in range(2)]\n"
        "while True:\n"
        "    cache = DocumentCache(max_bytes=0, directory=sys.argv[1])\n"
        "    cache.put('00', DocumentStates(one, other))\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    while not list(tmp_path.rglob("*.safetensors")) or not list(tmp_path.rglob("*.tmp")):
        assert writer.poll() is None
        time.sleep(0.002)
    writer.kill()
    writer.wait()
    one, other = (tuple(torch.ones(4, 8, 1, 16)) for _ in range(2))
    reader = DocumentCache(directory=tmp_path)  # a warning would be an error
    assert reader.get("00", 20_000, lambda: DocumentStates(one, other)) is not None
    for path in tmp_path.rglob("*.tmp"):
        os.utime(path, (0, 0))
    reader.put("00", DocumentStates(one, other))
    assert list(tmp_path.rglob("*.tmp")) == []  # what was left over is removed in time


def test_nothing_can_be_kept_without_a_cache(model: RagMiddleModel, prompt: ContextPrompt) -> None:
    with pytest.raises(UnsupportedGenerationError, match="document_cache"):
        model.precompute([prompt])
