"""How long counted work takes on a GPU: a roofline, from data sheets.

An operation takes as long as its arithmetic or its memory traffic, whichever is longer; a phase as
long as its operations or as launching them, whichever is longer. Nothing here was measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_middle.costs.counting import Work

__all__ = ["GPUS", "Gpu"]

#: Parts of the peak that good kernels reach: matrix products, attention kernels, memory traffic.
_PRODUCTS, _ATTENTION, _MEMORY = 0.7, 0.5, 0.8
#: Seconds from one launch to the next in eager PyTorch, Python and dispatcher included.
_LAUNCH = 6e-6
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
    """

    name: str
    gigabytes: float
    half_tflops: float
    single_tflops: float
    gigabytes_per_s: float

    def computing(self, work: Work) -> float:
        """Seconds that the operations take, one after the other."""
        half, single = self.half_tflops * 1e12, self.single_tflops * 1e12
        rate = {
            "half": half * _PRODUCTS,
            "attention": half * _ATTENTION,
            "single": single * _PRODUCTS,
            "memory": 1.0,
        }
        bandwidth = self.gigabytes_per_s * 1e9 * _MEMORY
        return sum(
            times * max(operation.flops / rate[operation.kind], operation.bytes / bandwidth)
            for operation, times in work.operations.items()
        )

    def launching(self, work: Work) -> float:
        """Seconds that the host takes to launch them."""
        return work.launches * _LAUNCH + work.uploads * _UPLOAD


#: GPUs by the name that the command line takes.
GPUS: dict[str, Gpu] = {
    "a100": Gpu(
        name="NVIDIA A100 80 GB SXM",
        gigabytes=80,
        half_tflops=312,
        single_tflops=19.5,
        gigabytes_per_s=2039,
    ),
    "h100": Gpu(
        name="NVIDIA H100 80 GB SXM",
        gigabytes=80,
        half_tflops=989,
        single_tflops=67,
        gigabytes_per_s=3350,
    ),
    "rtx4090": Gpu(
        name="NVIDIA GeForce RTX 4090",
        gigabytes=24,
        half_tflops=165,
        single_tflops=82.6,
        gigabytes_per_s=1008,
    ),
}
