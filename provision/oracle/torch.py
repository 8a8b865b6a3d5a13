"""PyTorch's wheels, and the GPUs on which they run. Pure.

As with MXNet's wheels (decide.py), machine code runs on the same major compute capability, from its minor one up, and
PTX does not count. The CUDA of the libraries is not compared with the GPU's: the libraries are in the wheel or in the
nvidia-* wheels that it requires, and PyTorch tests them together.

The code of PyPI's builds was read with bench/wheel_code.py from one wheel of each minor version: the machine code of
libtorch_cuda.so. That of the others comes from torch.cuda.get_arch_list() as quoted in PyTorch's issues
(https://github.com/pytorch/pytorch/issues/182250 and others).
"""

from collections.abc import Iterable
from re import compile as regex

from msgspec import Struct

from foundation.errors import ConfigError
from provision.oracle.tables import (
    Gpu,
    Machine,
    Version,
    capabilities,
    find_fitting,
    find_machine,
    name_setting,
    show,
    show_code,
    suggest_gpus,
)

TORCH_PATTERN = regex(r"torch==([0-9]+)\.([0-9]+)(?:\.[0-9]+)*(?:\+([a-z0-9.]+))?")
OLDEST_PYTHON = (3, 9)
"""The oldest Python of every environment: obstore, which the nodes' programs use, needs it."""


class TorchBuild(Struct, frozen=True, kw_only=True):
    """The wheels of some versions for Linux on x86-64.

    first, last: the versions, such as (2, 8), both included. cuda: the CUDA with which they were built.
    code: the compute capabilities for which all modules of libtorch_cuda.so have machine code.
    on_pypi: whether PyPI has this build. The others have their CUDA in the version, torch==2.7.1+cu128, and are on
    PyTorch's own index.
    """

    first: Version
    last: Version
    cuda: Version
    code: tuple[Version, ...]
    on_pypi: bool = True

    @property
    def label(self) -> str:
        """The local version of these wheels: cu128."""
        return f"cu{self.cuda[0]}{self.cuda[1]}"

    @property
    def versions(self) -> str:
        """The versions in tables: 2.8, or 2.8 to 2.10."""
        return show(self.first) if self.first == self.last else f"{show(self.first)} to {show(self.last)}"


_KEPLER = capabilities(37, 50, 60, 70, 75, 80, 86)
_MAXWELL = capabilities(50, 60, 70, 75, 80, 86, 90)
_VOLTA = capabilities(70, 75, 80, 86, 90, 100, 120)
_TURING = capabilities(75, 80, 86, 90, 100, 120)

TORCH_BUILDS: tuple[TorchBuild, ...] = (
    TorchBuild(first=(2, 15), last=(2, 15), cuda=(13, 2), code=_TURING),
    TorchBuild(first=(2, 11), last=(2, 14), cuda=(13, 0), code=_TURING),
    TorchBuild(first=(2, 8), last=(2, 10), cuda=(12, 8), code=_VOLTA),
    TorchBuild(first=(2, 7), last=(2, 7), cuda=(12, 6), code=_MAXWELL),
    TorchBuild(first=(2, 5), last=(2, 6), cuda=(12, 4), code=_MAXWELL),
    TorchBuild(first=(2, 1), last=(2, 4), cuda=(12, 1), code=_MAXWELL),
    TorchBuild(first=(1, 13), last=(2, 0), cuda=(11, 7), code=_KEPLER),
    TorchBuild(first=(2, 11), last=(2, 11), cuda=(12, 8), code=_TURING, on_pypi=False),
    TorchBuild(first=(2, 7), last=(2, 7), cuda=(12, 8), code=_TURING, on_pypi=False),
    TorchBuild(first=(2, 8), last=(2, 11), cuda=(12, 6), code=_MAXWELL, on_pypi=False),
    TorchBuild(first=(2, 0), last=(2, 7), cuda=(11, 8), code=_MAXWELL, on_pypi=False),
)
"""PyPI's builds first, the newest first."""

AUTO = ("torch==2.13.0", "torch==2.8.0", "torch==2.7.1")
"""The wheels of `torch = "auto"`, the preferred one first, which nodes without a GPU use. PyPI has all of them."""

# For the wheels on PyPI: a version, and the first and last Python from that version on.
_PYTHONS: tuple[tuple[Version, tuple[Version, Version]], ...] = (
    ((2, 9), ((3, 10), (3, 14))),
    ((2, 6), ((3, 9), (3, 13))),
    ((2, 2), ((3, 9), (3, 12))),
    ((2, 0), ((3, 9), (3, 11))),
    ((1, 13), ((3, 9), (3, 10))),  # with 3.11, its torchrun fails
)
# https://docs.nvidia.com/cuda/cuda-toolkit-release-notes: the oldest driver of a major version of CUDA
_DRIVERS = {11: (450, 80), 12: (525, 60), 13: (580, 65)}
_NUMPY_2_FROM = (2, 3)


class TorchVersion(Struct, frozen=True, kw_only=True):
    """A parsed version. minor: (2, 13) of 2.13.0. label: "cpu", "cu128", or "" for the index's default build."""

    minor: Version
    label: str

    @property
    def cuda(self) -> Version | None:
        """The CUDA of the label; None without one."""
        found = regex(r"cu([0-9]{2})([0-9])").fullmatch(self.label)
        return (int(found[1]), int(found[2])) if found else None


def parse_torch(requirement: str) -> TorchVersion | None:
    """The version in "torch==2.7.1+cu128"; None if it has another form, such as a development version. Pure."""
    found = TORCH_PATTERN.fullmatch(requirement)
    return TorchVersion(minor=(int(found[1]), int(found[2])), label=found[3] or "") if found else None


def find_builds(version: TorchVersion) -> tuple[TorchBuild, ...]:
    """The known GPU builds of a version, PyPI's first, without those that its label excludes. Pure."""
    found = [build for build in TORCH_BUILDS if build.first <= version.minor <= build.last]
    if version.label:
        found = [build for build in found if build.label == version.label]
    return tuple(sorted(found, key=lambda build: not build.on_pypi))


def find_build(requirement: str) -> TorchBuild | None:
    """The build that a requirement selects: by its label, or else PyPI's. None for CPU and unknown builds. Pure."""
    version = parse_torch(requirement)
    builds = find_builds(version) if version is not None else ()
    return next((build for build in builds if version is not None and (build.on_pypi or version.label)), None)


def pick_torch(gpu: Gpu | None, driver: str | None = None) -> str | None:
    """The wheel of `torch = "auto"` for a GPU, or without one; None if no wheel of AUTO has code for it. Pure.

    driver: its version, if known. A wheel that needs a newer one is only taken if all do.
    """
    if gpu is None:
        return AUTO[0]
    builds = ((requirement, find_build(requirement)) for requirement in AUTO)
    fitting = [(wheel, build) for wheel, build in builds if build is not None and find_fitting(build.code, gpu)]
    running = [wheel for wheel, build in fitting if explain_driver(build.cuda, driver) is None]
    return next(iter([*running, *(wheel for wheel, _ in fitting)]), None)


def find_pythons(requirement: str) -> tuple[Version, Version]:
    """The first and last Python for which PyPI has wheels of a version; for an unknown version, of the newest. Pure."""
    version = parse_torch(requirement)
    newest = _PYTHONS[0][1]
    return next((pythons for first, pythons in _PYTHONS if version is not None and version.minor >= first), newest)


def choose_numpy(requirement: str) -> str:
    """The NumPy that works with a version: versions before 2.3 were built for NumPy 1. Pure."""
    version = parse_torch(requirement)
    return "numpy<2" if version is not None and version.minor < _NUMPY_2_FROM else "numpy"


def explain_unfit(requirement: str, gpus: Iterable[Gpu]) -> str | None:
    """Why a wheel does not run on the first of some GPUs for which it has no code; None if it runs. Pure.

    Does not refuse a CPU build, or a version that is not in the table.
    """
    build = find_build(requirement)
    if build is None:
        return None
    for gpu in gpus:
        if gpu.capability is not None and not find_fitting(build.code, gpu):
            return f"has no machine code for {gpu.label} (it has sm_ {show_code(build.code)})"
    return None


def suggest_torch(gpu: Gpu) -> str:
    """The hint for a GPU for which a wheel has no code. Pure."""
    auto = pick_torch(gpu)
    if auto is not None:
        return f'set [bootstrap] torch = "auto", which uses {auto} there; cluster oracle --framework pytorch shows why'
    names = suggest_gpus(lambda one: pick_torch(one) is not None)
    return f"use a type with {names} GPUs, such as g5.xlarge; cluster oracle --framework pytorch lists them"


def check_torch(*, instance_type: str, torch: str, is_other: bool = False) -> tuple[str, ...]:
    """Checks [bootstrap] torch against an instance type before anything costs money. Pure.

    is_other: the type is from [provision] instance_types; errors name that key.
    Returns warnings for combinations that are unknown or may not work. Raises ConfigError for those that cannot work.
    """
    machine = find_machine(instance_type)
    if machine is None:
        return (f"instance_type {instance_type} is not in the table of GPUs: PyTorch may not run there",)
    setting = name_setting(instance_type, f'torch = "{torch}"', is_other=is_other)
    return _check_on(machine, torch, setting=setting, instance_type=instance_type)


def _check_on(machine: Machine, torch: str, *, setting: str, instance_type: str) -> tuple[str, ...]:
    gpu, warning = machine.gpu, ""
    if gpu is None:
        return ()
    build = find_build(torch)
    if machine.architecture != "x86_64":
        warning = f"no PyTorch wheel has been tested on {instance_type} (arm64): it may not use the {gpu.name}"
    elif gpu.capability is None:
        warning = f"PyTorch's wheels on PyPI do not use the {gpu.name} of {instance_type}, which is from {gpu.maker}"
    elif torch == "auto":
        if pick_torch(gpu) is None:
            warning = f"no PyTorch wheel on PyPI has code for {gpu.label}: the image must have its own PyTorch"
    elif torch.endswith("+cpu"):
        warning = f"{torch} does not use the {gpu.name} of {instance_type}, which you pay for"
    elif build is None:
        warning = f"{torch} is not in the table of PyTorch's wheels: it may have no code for the {gpu.name}"
    elif not find_fitting(build.code, gpu):
        raise ConfigError(f"{setting}: the wheel {explain_unfit(torch, [gpu])}", hint=suggest_torch(gpu))
    return (warning,) if warning else ()


def explain_driver(cuda: Version, driver: str | None) -> str | None:
    """Why a driver cannot run a wheel built with a CUDA version; None if it can, or if that is unknown. Pure."""
    oldest = _DRIVERS.get(cuda[0])
    numbers = (driver or "").split(".")
    if oldest is None or len(numbers) < 2 or not all(number.isdecimal() for number in numbers[:2]):
        return None
    if (int(numbers[0]), int(numbers[1])) >= oldest:
        return None
    return f"CUDA {show(cuda)} needs the NVIDIA driver {oldest[0]}.{oldest[1]} or later, and the node has {driver}"
