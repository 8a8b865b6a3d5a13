"""EC2's instance families and their GPUs: the data, and how the name of a type is read. Pure; asks nobody.

Sources: https://docs.aws.amazon.com/ec2/latest/instancetypes/ac.html for the GPU of a family,
https://developer.nvidia.com/cuda-gpus (and its legacy page) for the compute capability of a GPU,
https://docs.nvidia.com/cuda/cuda-toolkit-release-notes for the CUDA that first knew a compute capability.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from re import compile as regex
from typing import Literal

Version = tuple[int, int]
"""Of a compute capability or of CUDA: (8, 6) is 8.6."""

Architecture = Literal["x86_64", "arm64"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A kind of GPU; `capability` is its compute capability, None where it is not NVIDIA's."""

    name: str
    capability: Version | None
    maker: str = "NVIDIA"

    @property
    def label(self) -> str:
        """For messages: A10G (compute capability 8.6)."""
        if self.capability is None:
            return f"{self.name} (a GPU of {self.maker})"
        return f"{self.name} (compute capability {show(self.capability)})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What an instance family is made of; `gpu` is None where it has no GPU (Trainium and its kin are none)."""

    family: str
    architecture: Architecture
    gpu: Gpu | None


V100, A100, L4 = (
    Gpu(name="V100", capability=(7, 0)),
    Gpu(name="A100", capability=(8, 0)),
    Gpu(name="L4", capability=(8, 9)),
)
H200, M60 = Gpu(name="H200", capability=(9, 0)), Gpu(name="M60", capability=(5, 2))

_GPUS_X86: Mapping[str, Gpu] = {
    "g2": Gpu(name="GRID K520", capability=(3, 0)),
    "p2": Gpu(name="K80", capability=(3, 7)),
    "g3": M60,
    "g3s": M60,
    "p3": V100,
    "p3dn": V100,
    "g4dn": Gpu(name="T4", capability=(7, 5)),
    "p4d": A100,
    "p4de": A100,
    "g5": Gpu(name="A10G", capability=(8, 6)),
    "g6": L4,
    "gr6": L4,
    "g6f": L4,
    "gr6f": L4,
    "g6e": Gpu(name="L40S", capability=(8, 9)),
    "p5": Gpu(name="H100", capability=(9, 0)),
    "p5e": H200,
    "p5en": H200,
    "p6-b200": Gpu(name="B200", capability=(10, 0)),
    "p6-b300": Gpu(name="B300", capability=(10, 3)),
    "g7": Gpu(name="RTX PRO 4500", capability=(12, 0)),
    "g7e": Gpu(name="RTX PRO Server 6000", capability=(12, 0)),
    "g4ad": Gpu(name="Radeon Pro V520", capability=None, maker="AMD"),
    "dl1": Gpu(name="Gaudi HL-205", capability=None, maker="Habana"),
}
_GPUS_ARM: Mapping[str, Gpu] = {
    "g5g": Gpu(name="T4g", capability=(7, 5)),
    "p6e-gb200": Gpu(name="GB200", capability=(10, 0)),
    "p6e-gb300": Gpu(name="GB300", capability=(10, 3)),
}
GPU_MACHINES: tuple[Machine, ...] = (
    *(Machine(family=family, architecture="x86_64", gpu=gpu) for family, gpu in _GPUS_X86.items()),
    *(Machine(family=family, architecture="arm64", gpu=gpu) for family, gpu in _GPUS_ARM.items()),
)
"""Every family with GPUs, oldest generations first; among them such as EC2 no longer sells (g2, p2, g3, p3)."""

_BY_FAMILY = {machine.family: machine for machine in GPU_MACHINES}

# Class, generation, options: https://docs.aws.amazon.com/ec2/latest/instancetypes/instance-type-names.html
# The classes are those without GPUs; f, inf, trn, dl2q and vt have accelerators that CUDA does not run on.
_CPU_FAMILY = regex(r"(?P<cls>a|c|d|dl|f|h|hpc|i|im|inf|is|m|r|t|trn|u|vt|x|z)[0-9]+(?P<options>[a-z]*)(-[a-z0-9]+)?")
_HIGH_MEMORY = regex(r"u-[0-9]+tb[0-9]+")

_FIRST_CUDA: Mapping[Version, Version] = {
    (3, 0): (4, 2),
    (3, 5): (5, 0),
    (3, 7): (6, 5),
    (5, 2): (6, 5),
    (6, 2): (8, 0),
    (7, 0): (9, 0),
    (7, 2): (9, 2),
    (7, 5): (10, 0),
    (8, 0): (11, 0),
    (8, 6): (11, 1),
    (8, 7): (11, 4),
    (8, 9): (11, 8),
    (9, 0): (11, 8),
    (10, 0): (12, 8),
    (10, 3): (12, 9),
    (12, 0): (12, 8),
    (12, 1): (12, 9),
}


def find_machine(instance_type: str) -> Machine | None:
    """What "g5.xlarge", or the family "g5", is made of; None when this program does not know it."""
    family = instance_type.partition(".")[0]
    if family in _BY_FAMILY:
        return _BY_FAMILY[family]
    if _HIGH_MEMORY.fullmatch(family):
        return Machine(family=family, architecture="x86_64", gpu=None)
    named = _CPU_FAMILY.fullmatch(family)
    if named is None:
        return None
    # a1 was the first Graviton; from the second on they are an option, "g" behind the generation: c7gn, im4gn.
    arm = named["cls"] == "a" or "g" in named["options"]
    return Machine(family=family, architecture="arm64" if arm else "x86_64", gpu=None)


def first_cuda(capability: Version) -> Version:
    """The first CUDA whose libraries know a compute capability; for one between two known ones, the later one's."""
    later = [cuda for known, cuda in _FIRST_CUDA.items() if known >= capability]
    return min(later, default=max(_FIRST_CUDA.values()))


def show(version: Version) -> str:
    """8.6 for (8, 6)."""
    return f"{version[0]}.{version[1]}"
