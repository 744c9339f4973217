"""A method that stays on a model does what it does in a request, wherever the model runs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from typing import Any

import pytest
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel, pipeline

import rag_middle
from rag_middle import RagMiddleModel, applied
from rag_middle.attention import model_lock
from rag_middle.calibration import calibrate, draw_examples
from rag_middle.errors import (
    MethodConfigError,
    PatchIneffectiveError,
    RagMiddleError,
    UnsupportedArchitectureError,
)
from rag_middle.evaluation import Measurement, run
from rag_middle.fingerprint import fingerprint
from rag_middle.generation.sharing import origin
from rag_middle.layout import PromptLayout
from rag_middle.methods import (
    LPES,
    METHODS,
    AttentionBuckets,
    Method,
    PositionInterpolation,
)
from tests.contract.running import in_thread
from tests.families import FAMILIES
from tests.prompts import laid_out
from tests.reader import READER_LPES, reader_path
from tests.reader.questions import InventedDocuments

IDS = torch.arange(1, 41)[None]
LPES_3 = LPES(factors=(1.0, 1.5, 2.0))
#: Where tables differ: scalings, layer types, layers without rotation, one complex table.
KINDS = ("llama", "llama3", "gemma3_text", "cohere2", "smollm3", "phi", "glm4", "qwen3_next")


@torch.no_grad()
def logits(model: PreTrainedModel, **arguments: Any) -> torch.Tensor:
    result: torch.Tensor = model(IDS, **arguments).logits
    return result


def in_a_request(model: PreTrainedModel, method: Method) -> torch.Tensor:
    with applied(model, method, [laid_out(PromptLayout(length=IDS.shape[1]))]):
        return logits(model)


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize(
    "method",
    [PositionInterpolation(scale=1.5), AttentionBuckets(base_factors=(1.8,))],
    ids=lambda method: method.name,
)
@pytest.mark.one_in(3)
def test_an_installed_method_is_the_one_of_a_request(family: str, method: Method) -> None:
    model = FAMILIES[family].build("sdpa")
    plain, expected = logits(model), in_a_request(model, method)
    installed = rag_middle.install(model, method)
    assert torch.equal(logits(model), expected)
    assert not torch.equal(expected, plain)
    installed.undo()
    installed.undo()
    assert torch.equal(logits(model), plain)


def test_layers_have_factors_of_their_own_and_the_block_ends_them() -> None:
    model = FAMILIES["llama"].build("sdpa")
    plain, expected = logits(model), in_a_request(model, LPES_3)
    with rag_middle.install(model, LPES_3):
        assert torch.equal(logits(model), expected)
    assert torch.equal(logits(model), plain)


def test_rows_have_positions_of_their_own() -> None:
    """Left padding: a base of its own as well as a scale."""
    model = FAMILIES["llama"].build("sdpa")
    padded = torch.cat((torch.zeros(1, 5, dtype=torch.long), IDS[:, :-5]), -1)
    ids, mask = torch.cat((IDS, padded)), torch.ones(2, IDS.shape[1], dtype=torch.long)
    mask[1, :5] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    for method in (LPES_3, AttentionBuckets(base_factors=(1.8,))):
        with rag_middle.install(model, method), torch.no_grad():
            alone = model(IDS[:, :-5]).logits
            batch = model(ids, attention_mask=mask, position_ids=positions).logits
        torch.testing.assert_close(batch[1:, 5:], alone, atol=1e-4, rtol=1e-4)  # float32 sums


def test_generation_with_a_cache_equals_that_of_a_request() -> None:
    model = FAMILIES["llama"].build("sdpa")
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    with applied(model, LPES_3, [laid_out(PromptLayout(length=IDS.shape[1]))]):
        expected = model.generate(IDS, **options)
    with rag_middle.install(model, LPES_3):
        assert torch.equal(model.generate(IDS, **options), expected)
        draft = FAMILIES["llama"].build("sdpa")
        assisted = model.generate(IDS, assistant_model=draft, **options)
    assert torch.equal(assisted, expected)


@pytest.mark.filterwarnings("ignore")  # of transformers' own thread
def test_continuous_batching_equals_generation() -> None:
    """The real `generate_batch`, which runs the model in a thread of its own."""
    model = FAMILIES["llama"].build("sdpa")
    prompts = [IDS[0, :length].tolist() for length in (40, 25, 33)]
    config = GenerationConfig(max_new_tokens=8, do_sample=False, pad_token_id=0, eos_token_id=-1)
    sizes = {"num_blocks": 64, "max_batch_tokens": 64}
    names = signature(ContinuousBatchingConfig).parameters
    small = ContinuousBatchingConfig(
        **sizes, **{"page_size" if "page_size" in names else "block_size": 16}
    )

    def answers() -> list[list[int]]:
        outputs = model.generate_batch(
            prompts, generation_config=config, continuous_batching_config=small, warmup=False
        )
        by_prompt = {tuple(out.prompt_ids): out.generated_tokens for out in outputs.values()}
        return [by_prompt[tuple(prompt)] for prompt in prompts]

    def one_by_one() -> list[list[int]]:
        rows = [model.generate(torch.tensor([ids]), generation_config=config)[0] for ids in prompts]
        return [row[len(ids) :].tolist() for row, ids in zip(rows, prompts, strict=True)]

    plain = one_by_one()
    with rag_middle.install(model, LPES_3):
        expected = one_by_one()
        assert answers() == expected != plain
    assert answers() == plain


def test_a_pipeline_runs_it() -> None:
    model = RagMiddleModel.from_pretrained(reader_path())
    text = "Ada Lor lives in Lyonne. Ben Kar lives in Nantel.\nQuestion: Where does Ada live?"
    generator = pipeline("text-generation", model=model.model, tokenizer=model.tokenizer)
    options = {"max_new_tokens": 8, "do_sample": False, "return_full_text": False}
    method = PositionInterpolation(scale=2)
    prompt = model.tokenizer(text, return_tensors="pt").input_ids
    with applied(model.model, method, [laid_out(PromptLayout(length=prompt.shape[1]))]):
        expected = model.model.generate(prompt, max_new_tokens=8, do_sample=False)
    with rag_middle.install(model.model, method):
        [answer] = generator(text, **options)
    told = model.tokenizer.decode(expected[0, prompt.shape[1] :], skip_special_tokens=True)
    assert answer["generated_text"] == told


def test_threads_run_passes_of_their_own() -> None:
    model = FAMILIES["llama"].build("sdpa")
    with rag_middle.install(model, LPES_3):
        expected = [logits(model), logits(model, position_ids=IDS + 7)]
        wrong: list[str] = []

        def run(index: int) -> None:
            for _ in range(20):
                arguments = {"position_ids": IDS + 7} if index else {}
                if not torch.equal(logits(model, **arguments), expected[index]):
                    wrong.append(f"thread {index}")

        threads = [threading.Thread(target=run, args=(index,)) for index in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"none", "lpes", "position_interpolation"}))
def test_all_other_methods_are_refused_with_the_reason(name: str) -> None:
    try:
        method = METHODS.get(name).example()
    except RagMiddleError:
        return  # a composition of nothing
    with pytest.raises(MethodConfigError, match="rotary tables say nothing of that"):
        rag_middle.install(FAMILIES["llama"].build("sdpa"), method)


def test_a_request_on_top_is_refused_and_none_runs_as_installed() -> None:
    model = FAMILIES["llama"].build("sdpa")
    with rag_middle.install(model, LPES_3):
        expected = logits(model)
        with pytest.raises(MethodConfigError, match="has a method installed"):
            in_a_request(model, PositionInterpolation(scale=2))
        with pytest.raises(MethodConfigError, match="has a method installed"):
            rag_middle.install(model, PositionInterpolation(scale=2))
        assert torch.equal(in_a_request(model, METHODS.get("none")()), expected)
    in_a_request(model, PositionInterpolation(scale=2))


def test_parameters_that_change_nothing_install_nothing() -> None:
    model = FAMILIES["llama"].build("sdpa")
    plain = logits(model)
    with rag_middle.install(model, PositionInterpolation(scale=1)):
        assert torch.equal(logits(model), plain)
        in_a_request(model, LPES_3)


def test_parameters_that_leave_the_number_format_are_refused_and_undone() -> None:
    model = FAMILIES["llama"].build("sdpa")
    plain = logits(model)
    with pytest.raises(MethodConfigError, match=r"scale=1e-300.* NaN or infinite"):
        rag_middle.install(model, PositionInterpolation(scale=1e-300))
    assert torch.equal(logits(model), plain)


def test_models_without_rotary_positions_are_refused() -> None:
    with pytest.raises(UnsupportedArchitectureError):
        rag_middle.install(FAMILIES["gpt2"].build("sdpa"), PositionInterpolation(scale=2))


def test_a_compiled_model_is_refused() -> None:
    model = FAMILIES["llama"].build("sdpa")
    model.compile(backend="eager")
    with pytest.raises(UnsupportedArchitectureError, match="compiled"):
        rag_middle.install(model, PositionInterpolation(scale=2))


def test_hooks_that_reach_nothing_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from rag_middle.attention import installed

    monkeypatch.setattr(installed._Before, "__call__", lambda *_: None)
    model = FAMILIES["llama"].build("sdpa")
    with pytest.raises(PatchIneffectiveError, match="leaves the logits"):
        rag_middle.install(model, PositionInterpolation(scale=2))
    monkeypatch.undo()
    rag_middle.install(model, PositionInterpolation(scale=2)).undo()


def test_undo_waits_for_the_lock_of_the_model() -> None:
    model = FAMILIES["llama"].build()
    before = logits(model)
    installation = rag_middle.install(model, LPES_3)
    undoing = threading.Thread(target=installation.undo)
    with model_lock(model):
        undoing.start()
        undoing.join(timeout=0.2)
        assert undoing.is_alive()
        assert not torch.equal(before, logits(model))
    undoing.join(timeout=10)
    assert torch.equal(before, logits(model))


def test_a_fingerprint_tells_what_is_installed() -> None:
    model = FAMILIES["llama"].build("sdpa")
    before = fingerprint(model)
    seen = {before}
    for method in (LPES_3, PositionInterpolation(scale=2), PositionInterpolation(scale=3)):
        with rag_middle.install(model, method):
            seen.add(fingerprint(model))
            assert fingerprint(model) in seen
    assert len(seen) == 4
    assert fingerprint(model) == before


def test_measuring_what_a_method_is_installed_on_is_refused() -> None:
    """Its own answers would be taken for the unmodified model's, and be kept as such."""
    model = RagMiddleModel.from_pretrained(reader_path())
    task, how = InventedDocuments(documents=4), Measurement(limit=2, positions=2)
    with rag_middle.install(model.model, READER_LPES):
        for measured in (
            lambda: run(model, task, measurement=how),
            lambda: calibrate(model, "siw", *draw_examples(task, "siw", questions=3, held_out=2)),
            lambda: origin(model),
        ):
            with pytest.raises(MethodConfigError, match="has a method installed"):
                measured()
    assert run(model, task, measurement=how).records


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable")  # its newer name is too new
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "cohere2", "glm4"])
def test_layers_that_a_backward_pass_runs_again_are_as_in_the_first_run(family: str) -> None:
    """Of several passes, and in another thread, as on a GPU."""
    model: Any = FAMILIES[family].build("sdpa").requires_grad_(True).train()

    def gradients(backward: Any) -> list[torch.Tensor]:
        model.zero_grad()
        losses = [
            model(input_ids=ids, labels=ids, use_cache=False).loss for ids in (IDS, IDS[:, :9])
        ]
        backward(sum(losses))
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    with rag_middle.install(model, PositionInterpolation(scale=1.5)):
        expected = gradients(lambda loss: loss.backward())
        model.gradient_checkpointing_enable()
        for backward in (lambda loss: loss.backward(), lambda loss: in_thread(loss.backward)):
            for found, wanted in zip(gradients(backward), expected, strict=True):
                torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


def test_a_pass_under_way_in_another_thread_bears_that_it_is_undone() -> None:
    """Its hooks were listed before, and are then called without keyword arguments."""
    model = FAMILIES["llama"].build("sdpa")
    reached, undone = threading.Event(), threading.Event()

    def wait(module: Any, _: Any) -> None:
        if reached.is_set():
            return
        reached.set()
        undone.wait(30)

    for module in (model.model.layers[1].self_attn, model.model.rotary_emb):
        reached.clear()
        undone.clear()
        waiting = module.register_forward_pre_hook(wait)
        reached.set()
        installed = rag_middle.install(model, LPES_3)
        reached.clear()
        with ThreadPoolExecutor() as pool:
            running = pool.submit(logits, model)
            assert reached.wait(30)
            installed.undo()
            undone.set()
            running.result()
        waiting.remove()
