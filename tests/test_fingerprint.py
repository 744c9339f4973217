"""What a model computes next has a name of its own, and keeps it until something changes."""

from __future__ import annotations

import array
import functools
import gc
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama import modeling_llama

from rag_middle import applied
from rag_middle.fingerprint import fingerprint
from rag_middle.methods import PINE
from tests.conftest import FamilyModel
from tests.contract.cases import LONG
from tests.contract.running import generated, prompt_logits
from tests.tiny_models import build, tiny


class Adapted(nn.Module):
    """As libraries of adapters put one around a layer, with plain attributes as switches."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base
        self.extra = nn.ModuleDict({n: nn.Linear(64, base.out_features) for n in ("a", "b")})
        self.scaling = {"a": 1.0, "b": 0.5}
        self.targets = {"q_proj", "v_proj", "k_proj", "o_proj"}
        self._active = ["a"]
        self._disabled = False

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.base_layer(hidden)
        for name in () if self._disabled else self._active:
            out = out + self.scaling[name] * self.extra[name](hidden)
        return out


@pytest.fixture
def model() -> PreTrainedModel:
    model: Any = build("fingerprint", tiny(LlamaConfig), "sdpa")
    attention = model.model.layers[1].self_attn
    torch.manual_seed(0)
    attention.q_proj = Adapted(attention.q_proj)
    attention.q_proj.requires_grad_(False)
    return model  # type: ignore[no-any-return]


def _adapted(model: Any) -> Adapted:
    adapted: Adapted = model.model.layers[1].self_attn.q_proj
    return adapted


def _edit_one_value(model: Any) -> None:
    model.lm_head.weight[17, 3] += 0.5


def _edit_all_values_past_the_counter(model: Any) -> None:
    model.model.layers[2].mlp.up_proj.weight.data.mul_(1.5)


def _put_other_weights(model: Any) -> None:
    model.lm_head.weight.data = model.lm_head.weight.data + 1


def _hook(model: Any) -> None:
    model.model.layers[0].register_forward_hook(lambda _module, _args, out: out)


def _steering(factor: float) -> Callable[..., Tensor]:
    """Functions of one name; what differs is in a closure."""
    return lambda hidden, *_, **__: hidden * factor


class _Slotted:
    __slots__ = ("__own", "factor")

    def __init__(self, factor: float) -> None:
        self.factor = self.__own = factor

    def __call__(self, module: nn.Module, args: Any, out: Tensor) -> Tensor:
        return out * self.factor * self.__own


class _SlottedModule(nn.Module):
    __slots__ = ("factor",)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden * float(self.factor)  # type: ignore[arg-type]


#: What modules may hold of which type and name do not tell all: two of each.
HELD: dict[str, Callable[[float], object]] = {
    "a closure": _steering,
    "a closure over a closure": lambda x: functools.wraps(_steering(0))(_steering(x)),
    "a decorated closure": lambda x: torch.no_grad()(_steering(x)),
    "defaults": lambda x: lambda hidden, factor=x: hidden * factor,
    "keyword defaults": lambda x: lambda hidden, *, factor=x: hidden * factor,
    "a bound method": lambda x: _Slotted(x).__call__,
    "a bound method of a tensor": lambda x: torch.tensor([x]).mul,
    "a partial function": lambda x: functools.partial(torch.mul, other=x),
    "slots": _Slotted,
    "slots of a module": lambda x: _with(_SlottedModule(), factor=x),
    "an array": lambda x: np.array([0.0, x]),
    "an array of objects": lambda x: np.array([None, x], dtype=object),
    "an array every other value of which counts": lambda x: np.array([0, 1, x, 1])[::2],
    "a number of NumPy": np.float32,
    "dates": lambda x: np.array([int(x)], dtype="datetime64[s]"),
    "bytes": lambda x: bytearray([int(x)]),
    "an array of Python's": lambda x: array.array("d", [x]),
    "a fraction": lambda x: Fraction(int(x), 7),
    "a queue": lambda x: deque([x]),
    "a range": lambda x: range(int(x)),
    "a slice": lambda x: slice(int(x)),
}


def _with(value: Any, **attributes: object) -> Any:
    for name, attribute in attributes.items():
        setattr(value, name, attribute)
    return value


CHANGES: dict[str, Callable[[Any], object]] = {
    "adapters off": lambda m: setattr(_adapted(m), "_disabled", True),
    "another adapter": lambda m: setattr(_adapted(m), "_active", ["b"]),
    "an adapter's factor": lambda m: _adapted(m).scaling.update(a=0.9),
    "an adapter's weights": lambda m: _adapted(m).extra["a"].weight.mul_(2),
    "one value": _edit_one_value,
    "all values past the counter": _edit_all_values_past_the_counter,
    "other weights": _put_other_weights,
    "number format": lambda m: m.bfloat16(),
    "a module": lambda m: setattr(m.model.layers[0], "mlp", nn.Identity()),
    "a hook": _hook,
    "config": lambda m: setattr(m.config, "rms_norm_eps", 0.1),
    "backend": lambda m: m.set_attn_implementation("eager"),
    "an attribute": lambda m: setattr(m.model.layers[0].self_attn, "scaling", 0.1),
    "a tensor that is no parameter": lambda m: m.model.rotary_emb.inv_freq.mul_(2),
    "what a module holds unregistered": lambda m: setattr(m.model, "steering", torch.ones(3)),
}


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_whatever_decides_the_next_pass_changes_it(change: str, model: PreTrainedModel) -> None:
    before = fingerprint(model)
    assert fingerprint(model) == before
    CHANGES[change](model)
    after = fingerprint(model)
    assert after != before
    assert fingerprint(model) == after


@pytest.mark.parametrize("content", HELD)
@pytest.mark.parametrize("place", ["attribute", "hook", "forward"])
@pytest.mark.one_in(3)
def test_whatever_a_module_holds_is_looked_into(
    content: str, place: str, model: PreTrainedModel
) -> None:
    attention = model.model.layers[0].self_attn  # type: ignore[union-attr, operator]
    digests = []
    for factor in (2.0, 3.0, 3.0):
        value = HELD[content](factor)
        if place == "hook":
            handle = attention.register_forward_hook(value)
        else:
            setattr(attention, place, value)
        digests.append(fingerprint(model))
        if place == "hook":
            handle.remove()
    assert digests[0] != digests[1] == digests[2]


def _doubled(function: Callable[..., Any]) -> Callable[..., Any]:
    def doubled(*args: Any, **kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        return (out[0] * 2, *out[1:]) if isinstance(out, tuple) else out * 2

    return functools.wraps(function)(doubled)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (modeling_llama.LlamaAttention, "forward"),
        (modeling_llama.LlamaRMSNorm, "forward"),
        (modeling_llama.LlamaRotaryEmbedding, "forward"),
        (nn.Linear, "forward"),
        (modeling_llama.LlamaModel, "forward"),
        (modeling_llama, "apply_rotary_pos_emb"),
        (modeling_llama, "rotate_half"),
        (modeling_llama, "repeat_kv"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_functions_replaced_under_their_name_count(
    owner: Any, name: str, model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As libraries do that bring faster kernels for all models of a class."""
    before = fingerprint(model)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, _doubled(getattr(owner, name)))
        assert fingerprint(model) != before
    assert fingerprint(model) == before


def test_hooks_on_all_modules_count(model: PreTrainedModel) -> None:
    before = fingerprint(model)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert fingerprint(model) != before
    finally:
        handle.remove()
    assert fingerprint(model) == before


@pytest.mark.slow
def test_compiling_and_running_keeps_it(model: Any) -> None:
    compiled: Any = torch.compile(model, backend="eager")
    before = fingerprint(compiled)
    with torch.no_grad():
        compiled(torch.tensor([[1, 2, 3]]))
        compiled(torch.tensor([[1, 2, 3, 4, 5]]))
    assert fingerprint(compiled) == before


class _Operations(TorchDispatchMode):
    """Counts what PyTorch is asked to do."""

    count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def test_looking_is_cheap() -> None:
    """A fraction of a forward pass, as requests of a kept document begin with a look."""
    deep = build("deep", tiny(LlamaConfig, num_hidden_layers=32), "sdpa")
    fingerprint(deep)
    with _Operations() as looking:
        fingerprint(deep)
    with _Operations() as passing, torch.no_grad():
        deep(torch.zeros(1, 32, dtype=torch.long))
    assert looking.count < 3 * len(list(deep.parameters()))
    assert looking.count < passing.count / 3


@torch.no_grad()
def test_numbers_that_an_extension_keeps_count() -> None:
    model = build("quantized", tiny(LlamaConfig), "sdpa")
    found = set()
    for _ in range(2):
        found.add(fingerprint(QuantizedHead(model)))
        model.lm_head.weight.mul_(1.5)  # type: ignore[operator, union-attr]
    assert len(found) == 2


class QuantizedHead(nn.Module):
    """Its numbers are in no parameter, buffer or attribute, only in what it saves."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        values = model.lm_head.weight.clone()
        self.packed = lambda: values

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}packed"] = self.packed()


# All families but `llama_longrope` pass, which keeps the frequencies of what it read last.
@pytest.mark.parametrize(
    "family", ["llama", "gemma3_text", "gpt_oss", "bloom", "llama_yarn", "cohere2"]
)
def test_running_a_model_leaves_it(family: str, family_model: FamilyModel) -> None:
    model = family_model(family)
    before = fingerprint(model)
    generated(model, [LONG])
    assert fingerprint(model) == before
    model.train()
    assert fingerprint(model) == before  # requests run without dropout
    model.eval()


def test_a_request_of_another_thread_leaves_it(family_model: FamilyModel) -> None:
    model, found = family_model("llama"), list[str]()
    before = fingerprint(model)
    with applied(model, PINE(), [LONG.tokens]):
        prompt_logits(model, LONG)
        thread = threading.Thread(target=lambda: found.append(fingerprint(model)))
        thread.start()
        thread.join()
    assert found == [before]


def _scaled(module: object, args: object, output: Tensor, *, factor: float) -> Tensor:
    return output * factor


def _with_functions(targets: set[str]) -> PreTrainedModel:
    """A model with functions that hold addresses: partial ones, and those kept from a compiler."""
    model: Any = build("fingerprint", tiny(LlamaConfig), "sdpa")
    model.targets = targets
    model.lm_head.register_forward_hook(functools.partial(_scaled, factor=2.0))
    disabled = torch.compiler.disable(model.model.norm.forward)
    model.model.norm.forward = functools.wraps(disabled)(lambda hidden: disabled(hidden))
    return model  # type: ignore[no-any-return]


def test_what_a_compiler_is_let_make_later_keeps_it(model: PreTrainedModel) -> None:
    """As accelerate's hooks do at their first call."""

    def hook(module: object, args: object, output: Tensor) -> Tensor:
        made: Any = vars(hook).setdefault("_compiled_fn", torch.compiler.disable(_scaled))
        return made(module, args, output, factor=2.0)  # type: ignore[no-any-return]

    model.lm_head.register_forward_hook(hook)
    before = fingerprint(model)
    model(torch.tensor([[1, 2, 3]]))
    assert vars(hook)
    assert fingerprint(model) == before


@pytest.mark.slow  # starts a process that imports everything again
def test_it_is_the_same_in_another_process_and_keeps_no_model() -> None:
    code = (
        "from tests.test_fingerprint import *; from tests.test_fingerprint import _with_functions;"
        "print(fingerprint(_with_functions({'q_proj', 'v_proj', 'k_proj', 'o_proj'})))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    model = _with_functions({"o_proj", "k_proj", "v_proj", "q_proj"})
    assert printed.strip() == fingerprint(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
