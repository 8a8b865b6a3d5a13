"""Which MXNet wheel runs on which GPU: pure decisions over tables.py.

A wheel runs on a GPU when both of these hold; there is no third way:

- It has machine code for it. Machine code runs on its own major compute capability, from its minor one up: sm_86 on
  8.6 and 8.9, sm_70 on 7.0 and 7.5, neither on 9.0.
  (https://docs.nvidia.com/cuda/cuda-c-programming-guide/#binary-compatibility)
- The CUDA libraries beside it know that GPU: cuBLAS and cuDNN choose their kernels by the GPUs of their day. CUDA 9
  came before Turing, so mxnet-cu90 is not for a T4 though it has sm_70 code; mxnet-cu112 is for an L4, as its libraries
  from PyPI are CUDA 11.8's.

PTX counts for nothing. The driver could compile the PTX of a lower compute capability for a newer GPU, at the first
start and for minutes; but every wheel that holds PTX has it in some of its modules alone (351 of 406 in the CUDA 10
ones: the others are cuDNN's kernels, machine code only), and its libraries are as old as it is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foundation.errors import ConfigError
from provision.oracle.tables import (
    CPU_WHEEL,
    GPU_MACHINES,
    WHEELS,
    Gpu,
    Machine,
    Wheel,
    find_machine,
    find_wheel,
    first_cuda,
    show,
)

# NVIDIA's open kernel modules, which the image of `ami = "auto"` has, begin with Turing
# (https://github.com/NVIDIA/open-gpu-kernel-modules); AWS lists neither P3 nor G3 for that image.
_OPEN_DRIVER_FROM = (7, 5)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Whether a wheel runs on a machine, and uses its GPU where it has one; `why` is a clause for people."""

    wheel: Wheel
    runs: bool
    why: str


def judge(wheel: Wheel, gpu: Gpu | None) -> Verdict:
    """Whether `wheel` is of use on x86-64 with such a GPU, or with none. Pure."""
    runs, why = _judge(wheel, gpu)
    return Verdict(wheel=wheel, runs=runs, why=why)


def judge_on(wheel: Wheel, machine: Machine) -> Verdict:
    """Whether `wheel` is of use on a machine. Pure."""
    if machine.architecture != "x86_64":
        return Verdict(wheel=wheel, runs=False, why=f"is set up on x86_64 alone, and this is {machine.architecture}")
    return judge(wheel, machine.gpu)


def _judge(wheel: Wheel, gpu: Gpu | None) -> tuple[bool, str]:
    if wheel.cuda is None or wheel.libraries_cuda is None:
        return True, "runs on the processor" + ("; the GPU stays unused" if gpu else "")
    if gpu is None:
        return False, "needs an NVIDIA GPU, and there is none"
    if gpu.capability is None:
        return False, f"needs an NVIDIA GPU; {gpu.name} is {gpu.maker}'s"
    major, minor = gpu.capability
    fitting = [code for code in wheel.code if code[0] == major and code[1] <= minor]
    if not fitting:
        listed = " ".join(_number(code) for code in wheel.code)
        why = f"has no machine code for {show(gpu.capability)} (it has sm_ {listed})"
        if wheel.ptx and max(wheel.ptx) < gpu.capability:
            why += f", and PTX in {wheel.ptx_modules} of its {wheel.modules} modules only"
        return False, why
    needed = first_cuda(gpu.capability)
    if wheel.libraries_cuda < needed:
        libraries = f"the libraries of CUDA {show(wheel.libraries_cuda)} came before the {gpu.name}"
        return False, f"is too old: {libraries}, which CUDA {show(needed)} was the first to know"
    return True, f"has machine code for it: sm_{_number(max(fitting))}"


def pick_wheel(gpu: Gpu) -> Wheel | None:
    """What `mxnet = "auto"` takes for a GPU on x86-64: the preferred wheel that runs and lacks no library. Pure."""
    return next((wheel for wheel in find_gpu_wheels(gpu) if wheel.is_complete), None)


def pick_for(machine: Machine) -> Wheel | None:
    """What `mxnet = "auto"` takes on a machine; None where MXNet cannot be set up. Pure."""
    if machine.architecture != "x86_64":
        return None
    return pick_wheel(machine.gpu) if machine.gpu is not None else CPU_WHEEL


def find_gpu_wheels(gpu: Gpu) -> tuple[Wheel, ...]:
    """Every wheel that uses such a GPU, the preferred one first. Pure."""
    return tuple(wheel for wheel in WHEELS if wheel.cuda is not None and judge(wheel, gpu).runs)


def no_wheel_hint(gpu: Gpu) -> str:
    """What to do where "auto" has nothing for a GPU. Pure."""
    other = find_gpu_wheels(gpu)
    if other:
        listed = " or ".join(f'mxnet = "{wheel.requirement}"' for wheel in other[:2])
        return f"name a wheel yourself, with an image that has its CUDA: [bootstrap] {listed}"
    return f"take a type with {_suggest_gpus()} GPUs, such as g5.xlarge; cluster oracle lists them"


def check_mxnet(*, instance_type: str, mxnet: str, ami: str, is_other: bool = False) -> tuple[str, ...]:
    """Check [bootstrap] mxnet against [provision] instance_type and ami, before anything is spent. Pure.

    is_other: it is one of [provision] instance_types, and errors name that key.
    Gives warnings, for what is not known here or not sure to work. Raises ConfigError where it cannot work.
    """
    machine = find_machine(instance_type)
    if machine is None:
        return (f"instance_type {instance_type} is not in the table of GPUs: whether MXNet runs there is not known",)
    key = "instance_types," if is_other else "instance_type ="
    setting = f'[provision] {key} "{instance_type}" with [bootstrap] mxnet = "{mxnet}"'
    if machine.architecture != "x86_64":
        raise ConfigError(
            f"{setting}: its processor is {machine.architecture}; MXNet is set up on x86_64 alone",
            hint="take a type with Intel or AMD processors, such as g5.xlarge or c5.xlarge",
        )
    wheel = pick_for(machine) if mxnet == "auto" else find_wheel(mxnet)
    if wheel is None and mxnet == "auto" and machine.gpu is not None:
        raise ConfigError(f"{setting}: {no_auto_wheel(machine.gpu)}", hint=no_wheel_hint(machine.gpu))
    if wheel is None and mxnet.startswith("source@"):
        if machine.gpu is None:
            return ()
        return (f"{mxnet}: whether it will have code for the {machine.gpu.name} of {instance_type} is not known",)
    if wheel is None:
        return (f"{mxnet} is not in the table of MXNet's wheels: whether it runs on {instance_type} is not known",)
    verdict = judge(wheel, machine.gpu)
    if not verdict.runs:
        raise ConfigError(f"{setting}: {_subject(machine)}{verdict.why}", hint=_instead(machine.gpu))
    return _warnings(wheel, machine.gpu, ami=ami, instance_type=instance_type)


def check_gpus(wheel: Wheel, gpus: Iterable[Gpu]) -> str | None:
    """Why an explicitly chosen wheel does not run on GPUs that a node really has; None when it does. Pure."""
    verdicts = ((gpu, judge(wheel, gpu)) for gpu in gpus)
    return next((f"for {gpu.label} {verdict.why}" for gpu, verdict in verdicts if not verdict.runs), None)


def no_auto_wheel(gpu: Gpu) -> str:
    """The sentence for a GPU that "auto" has nothing for. Pure."""
    if find_gpu_wheels(gpu):
        return f'"auto" has no MXNet wheel for {gpu.label}: PyPI has no CUDA libraries for those with code for it'
    return f"no MXNet wheel has code for {gpu.label}"


def _subject(machine: Machine) -> str:
    return f"for {machine.gpu.label} the wheel " if machine.gpu is not None else "the wheel "


def _instead(gpu: Gpu | None) -> str:
    if gpu is None:
        return _take_auto(CPU_WHEEL)
    wheel = pick_wheel(gpu)
    return _take_auto(wheel) if wheel is not None else no_wheel_hint(gpu)


def _take_auto(wheel: Wheel) -> str:
    return f'set [bootstrap] mxnet = "auto", which takes {wheel.requirement} there; cluster oracle shows why'


def _suggest_gpus() -> str:
    """The GPUs that the image and the wheel of "auto" serve: T4, A100, ... or L40S."""
    names = {
        machine.gpu.name: None
        for machine in GPU_MACHINES
        if machine.gpu is not None and not _lacks_driver(machine.gpu) and pick_for(machine) is not None
    }
    *most, last = names
    return f"{', '.join(most)} or {last}"


def _lacks_driver(gpu: Gpu) -> bool:
    return gpu.capability is not None and gpu.capability < _OPEN_DRIVER_FROM


def _warnings(wheel: Wheel, gpu: Gpu | None, *, ami: str, instance_type: str) -> tuple[str, ...]:
    warnings: list[str] = []
    if wheel.cuda is None:
        if gpu is not None:
            warnings.append(f"{wheel.requirement} does not use the {gpu.name} of {instance_type}; it is paid for")
        return tuple(warnings)
    if not wheel.is_complete:
        warnings.append(
            f"{wheel.requirement} needs CUDA {show(wheel.cuda)}, which PyPI does not have: the image must bring it "
            f"({_missing(wheel.needs)})" + (', and that of [provision] ami = "auto" does not' if ami == "auto" else "")
        )
    if ami == "auto" and gpu is not None and _lacks_driver(gpu):
        warnings.append(
            f'the image of [provision] ami = "auto" has NVIDIA\'s open driver, which begins with the T4 and does not '
            f"know the {gpu.name}: name an image with the proprietary driver"
        )
    return tuple(warnings)


def _missing(needs: Sequence[str]) -> str:
    return ", ".join(needs[:2]) + f" and {len(needs) - 2} more"


def _number(code: tuple[int, int]) -> str:
    """86 for (8, 6), as nvcc writes it."""
    return f"{code[0]}{code[1]}"
