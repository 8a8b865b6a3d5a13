"""Decides which MXNet wheel runs on which GPU. Pure; the data are in tables.py.

A wheel runs on a GPU only if both conditions hold:

- It has machine code for the GPU. Machine code runs on the same major compute capability, from its minor one up: sm_86
  on 8.6 and 8.9, sm_70 on 7.0 and 7.5, neither on 9.0.
  (https://docs.nvidia.com/cuda/cuda-c-programming-guide/#binary-compatibility)
- Its CUDA libraries know the GPU: cuBLAS and cuDNN have kernels for the GPUs of their time. CUDA 9 is older than
  Turing, so mxnet-cu90 does not run on a T4, although it has sm_70 code. mxnet-cu112 runs on an L4, because its
  libraries from PyPI are those of CUDA 11.8.

PTX, which the driver could compile for a newer GPU, does not count: each wheel has it in only some of its modules.
"""

from collections.abc import Iterable
from typing import NamedTuple

from foundation.errors import ConfigError
from provision.oracle.tables import (
    CPU_WHEEL,
    WHEELS,
    Architecture,
    Gpu,
    Machine,
    Wheel,
    find_fitting,
    find_machine,
    find_wheel,
    first_cuda,
    name_setting,
    show,
    show_code,
    suggest_gpus,
)

# The image of `ami = "auto"` has NVIDIA's open kernel modules, which support Turing and later
# (https://github.com/NVIDIA/open-gpu-kernel-modules); AWS lists neither P3 nor G3 for that image.
_OPEN_DRIVER_FROM = (7, 5)


class Verdict(NamedTuple):
    """Whether a wheel runs on a machine and uses its GPU, if any; `why`: a clause for messages."""

    runs: bool
    why: str


def judge(wheel: Wheel, gpu: Gpu | None, architecture: Architecture = "x86_64") -> Verdict:
    """Whether `wheel` runs with this GPU, or without one. Pure."""
    if architecture != "x86_64":
        return Verdict(runs=False, why=f"is only supported on x86_64, not {architecture}")
    if wheel.cuda is None or wheel.libraries_cuda is None:
        return Verdict(runs=True, why="runs on the CPU" + ("; does not use the GPU" if gpu else ""))
    if gpu is None or gpu.capability is None:
        other = "" if gpu is None else f"; the {gpu.name} is from {gpu.maker}"
        return Verdict(runs=False, why=f"needs an NVIDIA GPU{other}")
    fitting, needed = find_fitting(wheel.code, gpu), first_cuda(gpu.capability)
    if fitting is None:
        why = f"has no machine code for {show(gpu.capability)} (it has sm_ {show_code(wheel.code)})"
        return Verdict(runs=False, why=why)
    if wheel.libraries_cuda < needed:
        libraries = f"its libraries are from CUDA {show(wheel.libraries_cuda)}"
        why = f"is too old: {libraries}, and the {gpu.name} needs CUDA {show(needed)} or newer"
        return Verdict(runs=False, why=why)
    return Verdict(runs=True, why=f"has machine code for it: sm_{show_code([fitting])}")


def pick_wheel(gpu: Gpu) -> Wheel | None:
    """The wheel of `mxnet = "auto"` for a GPU on x86-64: the first that runs and has all libraries on PyPI. Pure."""
    return next((wheel for wheel in find_gpu_wheels(gpu) if wheel.is_complete), None)


def pick_for(machine: Machine) -> Wheel | None:
    """The wheel of `mxnet = "auto"` for a machine; None if there is none. Pure."""
    if machine.architecture != "x86_64":
        return None
    return pick_wheel(machine.gpu) if machine.gpu is not None else CPU_WHEEL


def find_gpu_wheels(gpu: Gpu) -> tuple[Wheel, ...]:
    """Every wheel that uses this GPU, the preferred one first. Pure."""
    return tuple(wheel for wheel in WHEELS if wheel.cuda is not None and judge(wheel, gpu).runs)


def no_wheel_hint(gpu: Gpu) -> str:
    """The hint when "auto" has no wheel for a GPU. Pure."""
    other = find_gpu_wheels(gpu)
    if other:
        listed = " or ".join(f'mxnet = "{wheel.requirement}"' for wheel in other[:2])
        return f"set a wheel yourself, with an image that has its CUDA: [bootstrap] {listed}"
    names = suggest_gpus(lambda one: not _lacks_driver(one) and pick_wheel(one) is not None)
    return f"use a type with {names} GPUs, such as g5.xlarge; cluster oracle lists them"


def check_mxnet(*, instance_type: str, mxnet: str, ami: str, is_other: bool = False) -> tuple[str, ...]:
    """Checks [bootstrap] mxnet against [provision] instance_type and ami before anything costs money. Pure.

    is_other: the type is from [provision] instance_types; errors name that key.
    Returns warnings for combinations that are unknown or may not work. Raises ConfigError for those that cannot work.
    """
    machine = find_machine(instance_type)
    if machine is None:
        return (f"instance_type {instance_type} is not in the table of GPUs: MXNet may not run there",)
    setting = name_setting(instance_type, f'mxnet = "{mxnet}"', is_other=is_other)
    return _check_on(machine, mxnet, setting=setting, instance_type=instance_type, ami=ami)


def _check_on(machine: Machine, mxnet: str, *, setting: str, instance_type: str, ami: str) -> tuple[str, ...]:
    if machine.architecture != "x86_64":
        raise ConfigError(
            f"{setting}: the type is {machine.architecture}; MXNet is only supported on x86_64",
            hint="use a type with Intel or AMD processors, such as g5.xlarge or c5.xlarge",
        )
    wheel = pick_for(machine) if mxnet == "auto" else find_wheel(mxnet)
    if wheel is None and mxnet == "auto" and machine.gpu is not None:
        raise ConfigError(f"{setting}: {no_auto_wheel(machine.gpu)}", hint=no_wheel_hint(machine.gpu))
    if mxnet.endswith(".whl"):  # a file, whose code is unknown
        return ()
    if wheel is None:
        return (f"{mxnet} is not in the table of MXNet's wheels: it may not run on {instance_type}",)
    verdict = judge(wheel, machine.gpu)
    if not verdict.runs:
        subject = "the wheel" if machine.gpu is None else f"for {machine.gpu.label} the wheel"
        raise ConfigError(f"{setting}: {subject} {verdict.why}", hint=_instead(machine.gpu))
    return _warnings(wheel, machine.gpu, ami=ami, instance_type=instance_type)


def check_gpus(wheel: Wheel, gpus: Iterable[Gpu]) -> str | None:
    """Why a chosen wheel does not run on a node's actual GPUs; None if it does. Pure."""
    verdicts = ((gpu, judge(wheel, gpu)) for gpu in gpus)
    return next((f"for {gpu.label} {verdict.why}" for gpu, verdict in verdicts if not verdict.runs), None)


def no_auto_wheel(gpu: Gpu) -> str:
    """The message for a GPU for which "auto" has no wheel. Pure."""
    if find_gpu_wheels(gpu):
        return f'"auto" has no MXNet wheel for {gpu.label}: PyPI lacks the CUDA libraries of the wheels that support it'
    return f"no MXNet wheel has code for {gpu.label}"


def _instead(gpu: Gpu | None) -> str:
    wheel = CPU_WHEEL if gpu is None else pick_wheel(gpu)
    if wheel is None and gpu is not None:
        return no_wheel_hint(gpu)
    name = (wheel or CPU_WHEEL).requirement
    return f'set [bootstrap] mxnet = "auto", which uses {name} there; cluster oracle shows why'


def _lacks_driver(gpu: Gpu) -> bool:
    return gpu.capability is not None and gpu.capability < _OPEN_DRIVER_FROM


def _warnings(wheel: Wheel, gpu: Gpu | None, *, ami: str, instance_type: str) -> tuple[str, ...]:
    if wheel.cuda is None and gpu is not None:
        return (f"{wheel.requirement} does not use the {gpu.name} of {instance_type}, which you pay for",)
    if wheel.cuda is None:
        return ()
    warnings: list[str] = []
    if not wheel.is_complete:
        warnings.append(
            f"{wheel.requirement} needs CUDA {show(wheel.cuda)}, which PyPI does not have: the image must have it "
            f"({', '.join(wheel.needs[:2])} and {len(wheel.needs) - 2} more)"
            + ('; the image of [provision] ami = "auto" does not' if ami == "auto" else "")
        )
    if ami == "auto" and gpu is not None and _lacks_driver(gpu):
        warnings.append(
            f'the image of [provision] ami = "auto" has NVIDIA\'s open driver, which supports the T4 and later, not '
            f"the {gpu.name}: set ami to an image with the proprietary driver"
        )
    return tuple(warnings)
