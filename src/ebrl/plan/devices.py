"""What GPUs can do by their data sheets, and a workload's times moved from one GPU to another.

A rough guess: nobody measured. It says which stage will bind and how a machine would be divided; a profile taken
on the GPU itself says how fast. Three rules:

- Large matrix products, training's and the items of generation, take as much longer as the GPU has fewer bf16
  operations per second; a quarter of a generation item is denoising, which reads memory instead.
- The fixed part of a batch is launches, which the host makes and no GPU shortens, but for a quarter that reads weights.
- Kernels that fill so many SMs here fill as many there, so ``saturation`` follows the number of SMs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ebrl.errors import UsageError
from ebrl.resources.workload import BatchCosts, Workload

DENOISING = 0.25
"""Share of a generation item that is bound by memory: a π0 on an RTX 4090 takes 46 ms for images and prompt and 27 for
10 denoising steps (its paper), so 5 steps are 13 of 59 ms."""

LAUNCHES = 0.75
"""Share of the fixed part of a batch that the host takes to launch kernels: about 55 of 100 ms come off with a CUDA
graph, and preprocessing stays (measured by others with π0, see the shipped workloads)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One kind of GPU."""

    tflops: float
    """bf16 tensor operations per second, dense, with float32 accumulation, in 10¹²."""
    gbytes_per_s: float
    """Of its memory, in 10⁹."""
    num_sms: int
    source: str


_AMPERE = "NVIDIA A100 data sheet and Ampere whitepaper"
_HOPPER = "NVIDIA H100 data sheet and Hopper whitepaper"
_ADA = "NVIDIA Ada whitepaper"

DEVICES = {
    "A100-SXM4-80GB": Device(tflops=312, gbytes_per_s=2039, num_sms=108, source=_AMPERE),
    "A100-SXM4-40GB": Device(tflops=312, gbytes_per_s=1555, num_sms=108, source=_AMPERE),
    "A100 80GB PCIe": Device(tflops=312, gbytes_per_s=1935, num_sms=108, source=_AMPERE),
    "H100 80GB HBM3": Device(tflops=989, gbytes_per_s=3350, num_sms=132, source=_HOPPER),
    "H100 PCIe": Device(tflops=756, gbytes_per_s=2000, num_sms=114, source=_HOPPER),
    "H200": Device(tflops=989, gbytes_per_s=4800, num_sms=132, source="NVIDIA H200 data sheet"),
    "H20": Device(
        tflops=148, gbytes_per_s=4000, num_sms=78, source="public comparisons; NVIDIA has no data sheet of it"
    ),
    "L40": Device(tflops=181, gbytes_per_s=864, num_sms=142, source="NVIDIA L40 data sheet"),
    "L40S": Device(tflops=362, gbytes_per_s=864, num_sms=142, source="NVIDIA L40S data sheet"),
    "GeForce RTX 4090": Device(tflops=165, gbytes_per_s=1008, num_sms=128, source=_ADA),
    "GeForce RTX 3090": Device(tflops=71, gbytes_per_s=936, num_sms=82, source="NVIDIA GA102 whitepaper"),
}
"""By the name that the driver has for it, without ``NVIDIA``."""


def on_device(workload: Workload, gpu: str) -> Workload:
    """The workload as it would be on another GPU.

    Args:
        workload: one whose times are of a GPU in ``DEVICES``; on CPUs it stays what it is.
        gpu: name of the other, as the driver has it.

    Raises:
        UsageError: one of the two GPUs is unknown.
    """
    if workload.unit == "cpu" or _bare(workload.device) == _bare(gpu):
        return workload
    old, new = _device(workload.device, workload.name), _device(gpu, workload.name)
    slower, narrower = old.tflops / new.tflops, old.gbytes_per_s / new.gbytes_per_s
    item = (1 - DENOISING) * slower + DENOISING * narrower
    fixed = LAUNCHES + (1 - LAUNCHES) * narrower
    sms = old.num_sms / new.num_sms
    how = f"derived: moved from {workload.device} to {gpu} by data sheets: item × {{:.2f}}, fixed × {fixed:.2f}"
    return replace(
        workload,
        device=_bare(gpu),
        generation=_scaled(workload.generation, fixed, item, sms),
        training=_scaled(workload.training, fixed, slower, sms),
        sources=dict(workload.sources)
        | {"generation": how.format(item), "training": how.format(slower), "device": f"derived: {new.source}"},
    )


def _scaled(costs: BatchCosts, fixed: float, item: float, sms: float) -> BatchCosts:
    saturation = min(1.0, costs.saturation * sms) if costs.saturation < 1 else costs.saturation
    return replace(costs, fixed_s=costs.fixed_s * fixed, item_s=costs.item_s * item, saturation=saturation)


def _device(name: str, workload: str) -> Device:
    if _bare(name) not in DEVICES:
        raise UsageError(
            f"no data sheet of the GPU {name!r}, so the times of {workload} cannot be moved to or from it; known: "
            f"{', '.join(sorted(DEVICES))}; or take a profile on it (ebrl profile RUN.toml) and plan with that"
        )
    return DEVICES[_bare(name)]


def _bare(name: str) -> str:
    return name.removeprefix("NVIDIA ")
