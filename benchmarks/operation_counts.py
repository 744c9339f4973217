"""What a run of a model asks of a GPU, counted on tensors that hold no numbers, and its time.

On PyTorch's ``meta`` device every operation computes shapes and nothing else, so a model of any
size runs in seconds on any machine. The counter sees each operation as the dispatcher does, which
is one kernel launch on a GPU for nearly all of them.

Time is a roofline over data sheets: an operation takes as long as its arithmetic or its memory
traffic, a phase as long as its operations or as launching them, whichever is longer. What part of
the peak attention reaches on an H200, and what a launch costs the host, is as measured there.
"""

from __future__ import annotations

import copy
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, DynamicCache, PretrainedConfig, PreTrainedModel

from benchmarks.kernel_work import KERNEL_WORK
from rag_middle.attention import ModelTraits, applied, assume_traits, model_traits
from rag_middle.attention.seam import MODEL_CACHE
from rag_middle.generation.prompts import arranged, branched
from rag_middle.methods import Method
from rag_middle.tokens import TokenizedPrompt

#: Whose speed decides: matrix products on tensor cores or, in float32, beside them; attention
#: kernels; everything else, which moves memory.
Kind = str

_HALF = (torch.bfloat16, torch.float16)
_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")
_FLASH = ("_scaled_dot_product_flash_attention", "_flash_attention_forward")
_EFFICIENT = "_scaled_dot_product_efficient_attention"
#: Operations that read as much of their first tensor as they return.
_PICKS = ("index", "index_select", "gather", "embedding")
_NO_LAUNCH = ("empty", "empty_like", "new_empty", "empty_strided", "lift_fresh", "_unsafe_view")
#: Launches of operations that are more than one kernel: a stable sort of short rows takes three.
_LAUNCHES = {"sort": 3, "topk": 2}


class Operation(NamedTuple):
    """One operation.

    Attributes:
        name: of the ATen operation.
        kind: ``"half"``, ``"single"``, ``"attention"`` (the model's own), ``"flash"``,
            ``"triton"`` or ``"memory"``.
        flops: multiplications and additions of matrix products, 0 elsewhere.
        bytes: read and written.
        launches: kernels.
        triton: of these, Triton kernels.
    """

    name: str
    kind: Kind
    flops: int
    bytes: int
    launches: int
    triton: int = 0


@dataclass(slots=True)
class Work:
    """What was counted.

    Attributes:
        operations: and how often each ran.
        uploads: copies from the host to the device. Each waits for the device, as PyTorch copies
            from memory that is not pinned.
        widened_bytes: half-precision numbers copied to float32, in bytes read.
        squares: boolean tensors with as many rows as columns, above a thousand: masks of a prompt.
        kept_bytes: of what was allocated while counting, alive at its end.
        peak_bytes: most of it alive at once.
    """

    operations: Counter[Operation] = field(default_factory=Counter)
    uploads: int = 0
    widened_bytes: int = 0
    squares: int = 0
    kept_bytes: int = 0
    peak_bytes: int = 0

    @property
    def launches(self) -> int:
        """Kernels launched."""
        return sum(op.launches * times for op, times in self.operations.items())

    @property
    def flops(self) -> int:
        """Of all matrix products."""
        return sum(op.flops * times for op, times in self.operations.items())

    @property
    def bytes(self) -> int:
        """Read and written by all operations."""
        return sum(op.bytes * times for op, times in self.operations.items())


@contextmanager
def counted() -> Iterator[Work]:
    """Count what runs on the ``meta`` device inside the block.

    Reading a number back from the device raises there, as there is none: a run that ends has not
    waited for the device but for its uploads.
    """
    work = Work()
    counter = _Counter(work)
    with torch.no_grad(), counter, _Calls(work):
        yield work
    work.kept_bytes = counter.alive


class _Counter(TorchDispatchMode):
    """Sees every operation behind the dispatcher."""

    def __init__(self, work: Work) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._work = work
        self.alive = 0
        self._storages: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        outputs = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        self._add(func, name, inputs, outputs, args, kwargs or {})
        return out

    def _add(
        self,
        func: Any,
        name: str,
        inputs: list[Tensor],
        outputs: list[Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        on_device = [x for x in outputs if x.device.type == "meta"]
        if not on_device:
            return
        aliases = [returned.alias_info for returned in func._schema.returns]
        if all(alias is None for alias in aliases):
            self._allocated(on_device)
        is_view = all(alias is not None and not alias.is_write for alias in aliases)
        if is_view or name in _NO_LAUNCH:
            return
        work = self._work
        if name in ("_to_copy", "copy_") and _on_host(inputs[-1]):
            work.uploads += 1
        if name == "_to_copy" and inputs[0].dtype in _HALF and outputs[0].dtype == torch.float32:
            work.widened_bytes += _touched(inputs[0])
        for x in on_device:
            if x.dtype == torch.bool and x.ndim > 1 and min(x.shape[-2:]) > 1000:
                work.squares += 1
        work.operations[_operation(name, inputs, outputs, args, kwargs)] += 1

    def _allocated(self, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in self._storages:
                continue
            size = storage.nbytes()
            self._storages[key] = weakref.ref(storage, self._freed(key, size))
            self.alive += size
            self._work.peak_bytes = max(self._work.peak_bytes, self.alive)

    def _freed(self, key: int, size: int) -> Callable[[Any], None]:
        def forget(_: Any) -> None:
            self._storages.pop(key, None)
            self.alive -= size

        return forget


def _operation(
    name: str,
    inputs: list[Tensor],
    outputs: list[Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Operation:
    if work := KERNEL_WORK.get(name):
        flops, moved, launches = work(outputs, *args)
        return Operation(name, "triton" if flops else "memory", flops, moved, launches, launches)
    moved = sum(map(_touched, outputs))
    if name in _PICKS:
        moved += moved + sum(map(_touched, inputs[1:]))
    elif name.endswith("_") and name not in ("copy_", "fill_", "zero_"):
        moved += sum(map(_touched, inputs))  # the first is read as well as written
    else:
        moved += sum(map(_touched, inputs[1:] if name == "copy_" else inputs))
    launches = _LAUNCHES.get(name, 1)
    if name in _PRODUCTS:
        left: Tensor = args[0 if name in ("mm", "bmm") else 1]
        flops = 2 * outputs[0].numel() * left.shape[-1]
        return Operation(name, "half" if left.dtype in _HALF else "single", flops, moved, launches)
    if name in _FLASH or name == _EFFICIENT:
        query, key, value = inputs[:3]
        # [b, n, h, d] in the one that takes a window, [b, h, n, d] in the others.
        varied = name == "_flash_attention_forward"
        texts, batch = 1, query.shape[0]
        if (
            query.ndim == 3
        ):  # texts end to end, taken to be of one length: `bounds` holds no numbers
            texts, batch = args[3].numel() - 1, 1
            query, key, value = (x[None] for x in (query, key, value))
        heads = query.shape[1 + varied]
        rows, columns = (-(-x.shape[2 - varied] // texts) for x in (query, key))
        place = 8 if varied else 6 if name == _EFFICIENT else 4
        causal = len(args) > place and args[place]  # the dispatcher leaves defaults out
        window = kwargs.get("window_size_left")
        pairs = texts * _pairs(rows, columns, causal=causal, window=window)
        flops = 2 * batch * heads * pairs * (query.shape[-1] + value.shape[-1])
        kind = "flash" if query.dtype in _HALF else "single"
        return Operation(name, kind, flops, sum(map(_touched, [*inputs, outputs[0]])), launches)
    return Operation(name, "memory", 0, moved, launches)


def _pairs(rows: int, columns: int, *, causal: bool, window: int | None = None) -> int:
    """Pairs of a query and a key that sees it."""
    if not causal:
        return rows * columns
    reach = columns if window is None or window < 0 else min(columns, window + 1)
    # Rows are the last ones: row i of them sees min(reach, columns - rows + i + 1) keys.
    short = max(0, min(rows, reach - (columns - rows)))
    first = columns - rows + 1
    return short * (2 * first + short - 1) // 2 + (rows - short) * reach


def _touched(tensor: Tensor) -> int:
    """Bytes behind a tensor: what is expanded is there once."""
    extent = [n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    return prod(extent) * tensor.element_size()


def _on_host(x: object) -> bool:
    """Whether a tensor has to be sent to the device: a single number goes with the launch."""
    return isinstance(x, Tensor) and x.device.type == "cpu" and x.ndim > 0 and x.numel() > 0


class _Calls(TorchFunctionMode):
    """Sees what has no operation of its own on the ``meta`` device."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        if func is scaled_dot_product_attention:
            return self._attention(*args, **named)
        picks = func in (Tensor.__getitem__, Tensor.__setitem__)
        if picks and args[0].device.type == "meta":
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            # Indices in a list, or in memory of the host, are sent to the device.
            self._work.uploads += sum(isinstance(i, list) or _on_host(i) for i in index)
        out = func(*args, **named)
        if func in (torch.tensor, torch.as_tensor) and out.device.type == "meta" and out.numel():
            self._work.uploads += not isinstance(args[0], Tensor)
        return out

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **_: Any,
    ) -> Tensor:
        """One fused kernel, as on a GPU; the ``meta`` device would take it apart."""
        out = query.new_empty(*query.shape[:-1], value.shape[-1])
        pairs = _pairs(query.shape[-2], key.shape[-2], causal=is_causal)
        flops = 2 * prod(query.shape[:-2]) * pairs * (query.shape[-1] + value.shape[-1])
        moved = sum(map(_touched, [query, key, value, out]))
        if attn_mask is not None:
            moved += _touched(attn_mask)
        kind = "attention" if query.dtype in _HALF else "single"
        name = "scaled_dot_product_attention"
        self._work.operations[Operation(name, kind, flops, moved, 1)] += 1
        return out


# -- methods -------------------------------------------------------------------------------------

#: Decode steps before the one that is counted: the first ones make tables that later ones share.
_SETTLED = 2


@dataclass(frozen=True, slots=True)
class MethodWork:
    """Work of one request.

    Attributes:
        prefill: the whole prompt, every branch of the method in one batch.
        decode: one token after it.
        passes: prefills of the unmodified model before it reads the prompt, in prompts.
        cache_bytes: of the KV cache after the prompt.
        layers: of the model.
    """

    prefill: Work
    decode: Work
    passes: float
    cache_bytes: int
    layers: int


def without_numbers(config: PretrainedConfig) -> PreTrainedModel:
    """A model on the ``meta`` device, in bfloat16, whose attention layers are known.

    Args:
        config: of a plain decoder, such as LLaMA, Qwen or Mistral.
    """
    with torch.device("meta"):  # with sdpa, as it is loaded, where the family has that
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return assume_traits(model.eval(), _traits(config))


def prompt_of(tokens: int, documents: int, *, around: int = 40) -> TokenizedPrompt:
    """A prompt of `tokens`: equally long documents between `around` tokens and the rest.

    Raises:
        ValueError: there is not a token for every document.
    """
    length = (tokens - 2 * around) // documents if documents else 0
    if documents and length < 1:
        raise ValueError(f"{tokens} tokens do not hold {documents} documents.")
    return TokenizedPrompt.assembled(
        prefix=[1] * around,
        documents=[[2 + index] * length for index in range(documents)],
        suffix=[1] * (tokens - around - documents * length),
        document_ids=[None] * documents,
        scores=[1 / (1 + index) for index in range(documents)],
    )


def count_method(model: PreTrainedModel, method: Method, prompt: TokenizedPrompt) -> MethodWork:
    """Count a prefill and a decode step.

    Args:
        model: from `without_numbers`.
        prompt: of which only the layout matters.
    """
    runner = Passes(model_traits(model), prompt)
    branches = branched(arranged(method.rewrite(prompt), method, runner), method, runner)
    rows, columns = len(branches), max(len(branch.input_ids) for branch in branches)
    ids = torch.zeros(rows, columns, dtype=torch.long, device="meta")
    cache = DynamicCache(config=model.config)
    with applied(model, method, branches, prepared=True):
        with counted() as prefill:
            model(input_ids=ids, use_cache=True, logits_to_keep=1, **{MODEL_CACHE: cache})
        # Keys and values; of linear attention, the states that stand in their place.
        states = tree_leaves([vars(layer) for layer in cache.layers])
        cache_bytes = sum(
            x.nbytes for x in states if isinstance(x, Tensor) and x.is_floating_point()
        )
        for _ in range(_SETTLED + 1):
            with counted() as decode:
                model(input_ids=ids[:, :1], use_cache=True, **{MODEL_CACHE: cache})
    depth = model.config.num_hidden_layers
    return MethodWork(prefill, decode, runner.prompts, cache_bytes, depth)


class Passes:
    """What a method may ask of the model before it reads the prompt: counted, and answered."""

    def __init__(self, traits: ModelTraits, prompt: TokenizedPrompt) -> None:
        self.traits = traits
        self._prompt = prompt
        self.prompts = 0.0

    def _read(self, prompt: TokenizedPrompt) -> None:
        self.prompts += len(prompt.input_ids) / len(self._prompt.input_ids)

    def last_token_attention(self, prompt: TokenizedPrompt) -> Tensor:
        self._read(prompt)
        # The first documents most: no order that puts them last is ever the one asked about.
        weights = torch.linspace(1, 0, len(prompt.input_ids))
        return weights.expand(len(self.traits.layers), 1, -1)

    def logits(self, prompt: TokenizedPrompt, method: Method | None = None) -> Tensor:
        self._read(prompt)
        return torch.linspace(0, 1, 256)

    def token_ids(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode("ascii", "replace"))


def _traits(config: Any) -> ModelTraits:
    """What the layers are like: found out on a narrow model with numbers."""
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    narrow = copy.deepcopy(config)
    settings = {
        "hidden_size": 2 * head_size,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1 if kv_heads < heads else 2,
        "head_dim": head_size,
        "vocab_size": 64,
    }
    for name, value in settings.items():
        with suppress(AttributeError):  # some compute theirs from the others
            setattr(narrow, name, value)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(narrow).eval()
    traits = model_traits(model)
    layers = {
        index: replace(layer, heads=heads, kv_heads=kv_heads)
        for index, layer in traits.layers.items()
    }
    return replace(traits, layers=layers, hidden_size=config.hidden_size)


# -- time ----------------------------------------------------------------------------------------

#: Parts of the peak that good kernels reach: matrix products, attention kernels, memory traffic.
_PRODUCT_PART, _ATTENTION_PART, _MEMORY_PART = 0.7, 0.5, 0.8
#: The same of attention as measured on an H200, from 4k to 34k tokens (`results/gpu/kernels.json`):
#: what PyTorch takes for the model (0.50 to 0.62), its FlashAttention, which returns a log-sum-exp
#: (0.31, RoToR's at 34k), and this package's Triton kernels (PINE's, 0.23 to 0.29).
_MEASURED_PARTS = {"attention": 0.6, "flash": 0.3, "triton": 0.25}
#: Seconds from one launch to the next in eager PyTorch, Python and dispatcher included: a token of
#: a 7B model took 22 ms for 1,495 of them on that machine (`results/gpu/methods.json`).
_LAUNCH = 15e-6
#: The same of a Triton kernel: generated tokens of PINE took 66 us for each of five, of APE 63 for
#: each of two (`results/gpu/kernels.json`).
_TRITON_LAUNCH = 65e-6
#: Seconds that a copy from the host keeps it waiting.
_UPLOAD = 20e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One kind of GPU, by its data sheet.

    Attributes:
        name: as sold.
        gigabytes: memory, in 10^9 bytes.
        half_tflops: dense matrix products of 16-bit numbers on tensor cores, summed in float32.
        single_tflops: float32, beside the tensor cores.
        gigabytes_per_s: memory bandwidth.
        parts: of the tensor cores' peak, reached by attention of each kind.
    """

    name: str
    gigabytes: float
    half_tflops: float
    single_tflops: float
    gigabytes_per_s: float
    parts: Mapping[Kind, float] = field(
        default_factory=lambda: dict.fromkeys(_MEASURED_PARTS, _ATTENTION_PART)
    )

    def computing(self, work: Work) -> float:
        """Seconds that the operations take, one after the other."""
        half, single = self.half_tflops * 1e12, self.single_tflops * 1e12
        rate = {
            "half": half * _PRODUCT_PART,
            **{kind: half * part for kind, part in self.parts.items()},
            "single": single * _PRODUCT_PART,
            "memory": 1.0,
        }
        bandwidth = self.gigabytes_per_s * 1e9 * _MEMORY_PART
        return sum(
            times * max(operation.flops / rate[operation.kind], operation.bytes / bandwidth)
            for operation, times in work.operations.items()
        )

    def launching(self, work: Work) -> float:
        """Seconds that the host takes to launch them."""
        triton = sum(op.triton * times for op, times in work.operations.items())
        eager = work.launches - triton
        return eager * _LAUNCH + triton * _TRITON_LAUNCH + work.uploads * _UPLOAD


#: GPUs by short name.
GPUS: dict[str, Gpu] = {
    "a100": Gpu(
        name="NVIDIA A100 80 GB SXM",
        gigabytes=80,
        half_tflops=312,
        single_tflops=19.5,
        gigabytes_per_s=2039,
    ),
    "h200": Gpu(
        name="NVIDIA H200 141 GB SXM",
        gigabytes=141,
        half_tflops=989,
        single_tflops=67,
        gigabytes_per_s=4800,
        parts=_MEASURED_PARTS,
    ),
    "rtx4090": Gpu(
        name="NVIDIA GeForce RTX 4090",
        gigabytes=24,
        half_tflops=165,
        single_tflops=82.6,
        gigabytes_per_s=1008,
    ),
}
