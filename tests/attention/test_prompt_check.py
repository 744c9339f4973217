"""A block refuses forward passes that do not hold just the prompts it was opened for."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rag_middle.attention import applied
from rag_middle.attention.seam import MODEL_CACHE
from rag_middle.errors import UnsupportedGenerationError
from rag_middle.layout import PromptLayout
from rag_middle.methods import (
    APE,
    METHODS,
    PINE,
    Method,
    MsPoE,
    PositionInterpolation,
    RoToR,
    SelfExtend,
    ZeroTuning,
)
from tests.adapters import Wrapper
from tests.conftest import FamilyModel
from tests.prompts import laid_out
from tests.tiny_models import seeing_pictures

LAYOUT = PromptLayout(12, ((2, 5), (5, 9)))
IDS = torch.arange(5, 17)[None]
READERS = [PINE(), APE(temperature=0.6, scale=0.8), SelfExtend(group=2, window=4)]


def _virtual_tokens(model: Any, _: Any) -> None:
    embeddings = model.get_input_embeddings()
    virtual = torch.randn(1, 3, embeddings.weight.shape[1])
    model(inputs_embeds=torch.cat((virtual, embeddings(IDS)), dim=1))


def _virtual_states(model: Any, cache: Any) -> None:
    model(input_ids=IDS, attention_mask=torch.ones(1, 15), **{MODEL_CACHE: cache})


def _cut(model: Any, _: Any) -> None:
    cache = model(input_ids=IDS, use_cache=True)[MODEL_CACHE]
    model(input_ids=IDS[:, :1], **{MODEL_CACHE: cache})
    cache.crop(-1)
    model(input_ids=IDS[:, 1:2], **{MODEL_CACHE: cache})


def _left_out(model: Any, _: Any) -> None:
    model(input_ids=IDS, use_cache=True)
    model(input_ids=IDS[:, :1])


def _hidden_tokens(model: Any, _: Any) -> None:
    mask = torch.ones_like(IDS)
    mask[:, 4] = 0
    model(input_ids=IDS, attention_mask=mask)


def _later_proposals(model: Any, _: Any) -> None:
    model.generate(
        IDS, prompt_lookup_num_tokens=2, max_new_tokens=30, min_new_tokens=30, do_sample=False
    )


@pytest.mark.parametrize("method", READERS, ids=str)
@pytest.mark.parametrize(
    "run", [_virtual_tokens, _virtual_states, _cut, _left_out, _hidden_tokens, _later_proposals]
)
def test_what_does_not_read_the_prompt_once_is_refused(
    llama: Any, run: Callable[[Any, Any], None], method: Method
) -> None:
    with torch.no_grad():
        virtual = llama(input_ids=IDS[:, :3], use_cache=True)[MODEL_CACHE]
    with (
        torch.no_grad(),
        pytest.raises(UnsupportedGenerationError, match=r"LoRA|assisted|mask leaves out"),
        applied(llama, method, [laid_out(LAYOUT, IDS[0].tolist())]),
    ):
        run(llama, virtual)


@pytest.mark.parametrize("name", ["cacheblend", "dysco", "pine"])
def test_a_wrapper_generates_as_what_it_wraps(llama: Any, name: str) -> None:
    method = dict(METHODS.items())[name].example()
    prompt = [laid_out(LAYOUT, IDS[0].tolist())]
    made = []
    for form in (llama, Wrapper(llama)):
        with torch.no_grad(), applied(form, method, prompt):  # type: ignore[arg-type]
            made.append(form.generate(IDS, max_new_tokens=4, do_sample=False))  # type: ignore[operator]
    assert torch.equal(*made)


def _whole(shown: torch.Tensor) -> torch.Tensor:
    """Of a mask `[1, n]`, what attention adds to scores, `[1, 1, n, n]`."""
    n = shown.shape[1]
    visible = torch.ones(n, n, dtype=torch.bool).tril() & shown.bool()[0]
    return torch.zeros(1, 1, n, n).masked_fill(~visible, torch.finfo(torch.float32).min)


@pytest.mark.parametrize("method", [*READERS, ZeroTuning(factor=2.0)], ids=str)
@pytest.mark.parametrize(
    "form",
    [_whole, lambda shown: _whole(shown) == 0, lambda _: object()],
    ids=["added", "truth", "unreadable"],
)
def test_a_prompt_that_is_not_read_causally_is_refused(
    llama: Any, method: Method, form: Callable[[torch.Tensor], Any]
) -> None:
    """Pictures are read whole; what flex attention takes for a mask cannot be looked into."""
    mask = form(torch.ones_like(IDS))
    if isinstance(mask, torch.Tensor):
        mask[..., 5, 6] = mask[..., 6, 5]
        match = "attend to later ones"
    else:
        match = "cannot read the masks"
    with (
        llama.model.layers[0].self_attn.register_forward_pre_hook(
            lambda _module, args, kwargs: (args, kwargs | {"attention_mask": mask}),
            with_kwargs=True,
        ),
        torch.no_grad(),
        pytest.raises(UnsupportedGenerationError, match=match),
        applied(llama, method, [laid_out(LAYOUT, IDS[0].tolist())]),
    ):
        llama(input_ids=IDS)


@pytest.mark.parametrize("method", [PINE(), RoToR(), APE(temperature=0.6, scale=0.8)], ids=str)
def test_autocast_is_refused_where_a_method_attends_itself(llama: Any, method: Method) -> None:
    with (
        torch.no_grad(),
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(UnsupportedGenerationError, match="autocast"),
        applied(llama, method, [laid_out(LAYOUT, IDS[0].tolist())]),
    ):
        llama(input_ids=IDS)


@pytest.mark.thorough
def test_places_on_several_axes_are_refused_where_a_method_gives_others() -> None:
    """As models that see pictures have them."""
    model = seeing_pictures()
    flat = torch.arange(12).expand(3, 1, -1)
    picture = flat.clone()
    picture[1:, :, 3:6] -= 1
    prompt = [laid_out(LAYOUT, IDS[0].tolist())]
    with torch.no_grad():
        expected = model(input_ids=IDS, position_ids=picture).logits
        for method in (PositionInterpolation(scale=1), MsPoE(min_ratio=1, max_ratio=1)):
            with applied(model, method, prompt):
                logits = model(input_ids=IDS, position_ids=picture).logits
            torch.testing.assert_close(logits, expected)
        for reader in READERS:
            with (
                pytest.raises(UnsupportedGenerationError, match="several axes"),
                applied(model, reader, prompt),
            ):
                model(input_ids=IDS, position_ids=picture)
            with applied(model, reader, prompt):
                model(input_ids=IDS, position_ids=flat)


@pytest.mark.parametrize("past_hooks", [False, True], ids=["called", "forward"])
def test_padding_on_the_right_is_refused(llama: Any, past_hooks: bool) -> None:
    """Some wrappers (AdaLoRA's) call the forward method of what they wrap, past its hooks."""
    mask = torch.ones_like(IDS)
    mask[:, -1] = 0
    with (
        pytest.raises(UnsupportedGenerationError, match="left"),
        applied(llama, PINE(), [laid_out(PromptLayout(11, ((2, 5), (5, 9))))]),
    ):
        (llama.forward if past_hooks else llama)(input_ids=IDS, attention_mask=mask)


def test_position_scaling_alone_does_not_depend_on_the_layout(llama: Any) -> None:
    with torch.no_grad(), applied(llama, PositionInterpolation(scale=2), [laid_out(LAYOUT)]):
        logits = llama(input_ids=torch.arange(5, 18)[None]).logits
    assert logits.shape[1] == 13


def test_a_block_in_which_the_model_never_runs_is_pointed_out(family_model: FamilyModel) -> None:
    with (
        pytest.warns(UserWarning, match="did not run inside this applied"),
        applied(family_model("llama"), PINE(), [laid_out(LAYOUT)]),
    ):
        pass
