"""EC2's instance families with their GPUs, and MXNet's wheels on PyPI: only data.

Sources: https://docs.aws.amazon.com/ec2/latest/instancetypes/ac.html for the GPU of a family,
https://developer.nvidia.com/cuda-gpus (and its legacy page) for the compute capability of a GPU,
https://docs.nvidia.com/cuda/cuda-toolkit-release-notes for the first CUDA that supports a compute capability.
The wheels were measured: see `Wheel`.
"""

from collections.abc import Callable, Iterable, Mapping
from re import compile as regex
from re import sub
from types import MappingProxyType
from typing import Literal

from msgspec import Struct

Version = tuple[int, int]
"""A compute capability or a version of CUDA: (8, 6) is 8.6."""

Architecture = Literal["x86_64", "arm64"]


class Gpu(Struct, frozen=True, kw_only=True):
    """A GPU model; `capability`: its compute capability, None if it is not NVIDIA's."""

    name: str
    capability: Version | None
    maker: str = "NVIDIA"

    @property
    def label(self) -> str:
        """The GPU in messages: A10G (compute capability 8.6)."""
        if self.capability is None:
            return f"{self.name} (a GPU from {self.maker})"
        return f"{self.name} (compute capability {show(self.capability)})"


class Machine(Struct, frozen=True, kw_only=True):
    """The hardware of an instance family; `gpu`: None without GPUs."""

    family: str
    architecture: Architecture
    gpu: Gpu | None

    @property
    def label(self) -> str:
        """Its GPU and architecture in messages."""
        return f"{self.gpu.label if self.gpu else 'no GPU'}, {self.architecture}"


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
"""Every family with GPUs, oldest generations first, including those that EC2 no longer offers (g2, p2, g3, p3)."""

_BY_FAMILY = {machine.family: machine for machine in GPU_MACHINES}

# Class, generation, options: https://docs.aws.amazon.com/ec2/latest/instancetypes/instance-type-names.html
# The classes are those without GPUs.
_CPU_FAMILY = regex(r"(?P<cls>a|c|d|dl|f|h|hpc|i|im|inf|is|m|r|t|trn|u|vt|x|z)[0-9]+(?P<options>[a-z]*)(-[a-z0-9]+)?")
_HIGH_MEMORY = regex(r"u-[0-9]+tb[0-9]+")

_FIRST_CUDA: Mapping[Version, Version] = {
    (3, 0): (4, 2),
    (3, 7): (6, 5),
    (5, 2): (6, 5),
    (7, 0): (9, 0),
    (7, 5): (10, 0),
    (8, 0): (11, 0),
    (8, 6): (11, 1),
    (8, 9): (11, 8),
    (9, 0): (11, 8),
    (10, 0): (12, 8),
    (10, 3): (12, 9),
    (12, 0): (12, 8),
}


def find_machine(instance_type: str) -> Machine | None:
    """The hardware of "g5.xlarge" or the family "g5"; None if unknown."""
    family = instance_type.partition(".")[0]
    if family in _BY_FAMILY:
        return _BY_FAMILY[family]
    if _HIGH_MEMORY.fullmatch(family):
        return Machine(family=family, architecture="x86_64", gpu=None)
    named = _CPU_FAMILY.fullmatch(family)
    if named is None:
        return None
    # a1 was the first Graviton; later ones have the option "g" after the generation: c7gn, im4gn.
    arm = named["cls"] == "a" or "g" in named["options"]
    return Machine(family=family, architecture="arm64" if arm else "x86_64", gpu=None)


def first_cuda(capability: Version) -> Version:
    """The first CUDA with libraries for a compute capability; for an unknown one, the CUDA of the next known one."""
    later = [cuda for known, cuda in _FIRST_CUDA.items() if known >= capability]
    return min(later, default=max(_FIRST_CUDA.values()))


def find_fitting(code: Iterable[Version], gpu: Gpu) -> Version | None:
    """The machine code that runs on a GPU: that of the same major compute capability, from its minor one up."""
    if gpu.capability is None:
        return None
    major, minor = gpu.capability
    return max((one for one in code if one[0] == major and one[1] <= minor), default=None)


def show(version: Version) -> str:
    """Returns 8.6 for (8, 6)."""
    return f"{version[0]}.{version[1]}"


def show_code(code: Iterable[Version]) -> str:
    """Returns compute capabilities as nvcc writes them: 70 75."""
    return " ".join(f"{major}{minor}" for major, minor in code)


def name_setting(instance_type: str, wheel: str, *, is_other: bool) -> str:
    """Returns the settings that are checked, for errors. wheel: 'mxnet = "auto"'. is_other: see check_mxnet."""
    key = "instance_types," if is_other else "instance_type ="
    return f'[provision] {key} "{instance_type}" with [bootstrap] {wheel}'


def suggest_gpus(is_supported: Callable[[Gpu], bool]) -> str:
    """Names the GPUs of the x86-64 families that are supported: T4, A100, ... or L40S."""
    gpus = (machine.gpu for machine in GPU_MACHINES if machine.gpu is not None and machine.architecture == "x86_64")
    *most, last = dict.fromkeys(gpu.name for gpu in gpus if is_supported(gpu))
    return f"{', '.join(most)} or {last}"


# --- wheels


class Wheel(Struct, frozen=True, kw_only=True):
    """A wheel for Linux on x86-64; all are pure ctypes.

    size_mb: of the file, in millions of bytes.
    cuda: the CUDA that it was built with; None for CPU wheels.
    code: the compute capabilities for which its libmxnet.so has machine code, as bench/wheel_code.py shows it.
    reads_s3: whether it can open s3://; tested: others fail with "Please compile with DMLC_USE_S3=1".
    needs: the CUDA libraries that it loads (`readelf -d`), besides the driver's libcuda.so.1.
    packages: the PyPI packages that contain all of `needs`; () if PyPI does not have them.
    libraries_cuda: the CUDA version of those libraries, which determines the GPUs that they support.
    """

    name: str
    version: str
    size_mb: int
    reads_s3: bool
    cuda: Version | None = None
    code: tuple[Version, ...] = ()
    needs: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    libraries_cuda: Version | None = None

    @property
    def requirement(self) -> str:
        """The requirement for pip and for [bootstrap] mxnet: mxnet-cu112==1.9.1."""
        return f"{self.name}=={self.version}"

    @property
    def is_complete(self) -> bool:
        """Whether PyPI has everything that it needs.

        If so, a GPU wheel runs on any image with a driver, and a CPU wheel on any image.
        """
        return self.cuda is None or bool(self.packages)


def capabilities(*numbers: int) -> tuple[Version, ...]:
    """Converts nvcc's numbers: 86 is (8, 6)."""
    return tuple(divmod(number, 10) for number in numbers)


def _gpu_wheel(
    name: str,
    version: str,
    size_mb: int,
    code: tuple[Version, ...],
    *beside: str,
    libraries: Mapping[str, str] = MappingProxyType({}),
    reads_s3: bool = False,
    packages: tuple[str, ...] = (),
    libraries_cuda: Version | None = None,
) -> Wheel:
    """A wheel of the CUDA in its name. libraries: versions of the toolkit's that differ from it. beside: others."""
    cuda = divmod(int(name.removeprefix("mxnet-cu")), 10)
    names = ("cublas", "cudart", "cufft", "curand", "cusolver", "nvrtc")
    return Wheel(
        name=name,
        version=version,
        size_mb=size_mb,
        reads_s3=reads_s3,
        cuda=cuda,
        code=code,
        needs=(*(f"lib{one}.so.{libraries.get(one, show(cuda))}" for one in names), *beside),
        packages=packages,
        libraries_cuda=libraries_cuda or cuda,
    )


_VOLTA = capabilities(30, 35, 50, 52, 60, 61, 70)
_TURING = capabilities(30, 35, 50, 52, 60, 61, 70, 75)
_NVTX = "libnvToolsExt.so.1"
_CUDNN_8 = ("libcudnn.so.8", "libnccl.so.2", _NVTX)
_CUDA_10 = {"cublas": "10", "cufft": "10", "curand": "10", "cusolver": "10"}
_CUDA_11 = {"cublas": "11", "cufft": "10", "curand": "10", "cusolver": "10", "cudart": "11.0"}

CPU_WHEEL = Wheel(name="mxnet", version="1.7.0.post2", size_mb=55, reads_s3=True)
"""The newest CPU wheel that can read s3:// by itself."""

GPU_WHEEL = _gpu_wheel(
    "mxnet-cu112",
    "1.9.1",
    499,
    capabilities(50, 60, 70, 80, 86),
    *_CUDNN_8,
    libraries=_CUDA_11 | {"cusolver": "11"},
    packages=(
        "nvidia-cuda-runtime-cu11",
        "nvidia-cublas-cu11",
        "nvidia-cudnn-cu11==8.9.6.50",
        "nvidia-cufft-cu11",
        "nvidia-curand-cu11",
        "nvidia-cusolver-cu11",
        "nvidia-cusparse-cu11",
        "nvidia-nccl-cu11",
        "nvidia-cuda-nvrtc-cu11",
        "nvidia-nvtx-cu11",
    ),
    # The last libraries for CUDA 11: cuBLAS 11.11 and cuDNN 8.9, with code for sm_50 to sm_90.
    libraries_cuda=(11, 8),
)
"""The only GPU wheel with all its libraries on PyPI."""

WHEELS: tuple[Wheel, ...] = (
    CPU_WHEEL,
    Wheel(name="mxnet", version="1.5.1.post0", size_mb=25, reads_s3=True),
    Wheel(name="mxnet", version="1.6.0", size_mb=69, reads_s3=False),
    Wheel(name="mxnet", version="1.8.0.post0", size_mb=47, reads_s3=False),
    Wheel(name="mxnet", version="1.9.1", size_mb=49, reads_s3=False),
    GPU_WHEEL,
    _gpu_wheel("mxnet-cu110", "1.9.1", 327, capabilities(50, 60, 70, 80), *_CUDNN_8, libraries=_CUDA_11),
    _gpu_wheel("mxnet-cu102", "1.9.1", 381, capabilities(30, 50, 60, 70, 75), *_CUDNN_8, libraries=_CUDA_10),
    _gpu_wheel("mxnet-cu102", "1.7.0", 896, _TURING, _NVTX, libraries=_CUDA_10, reads_s3=True),
    _gpu_wheel("mxnet-cu101", "1.7.0.post1", 846, _TURING, _NVTX, libraries=_CUDA_10, reads_s3=True),
    _gpu_wheel("mxnet-cu100", "1.7.0", 828, _TURING, _NVTX, reads_s3=True),
    _gpu_wheel("mxnet-cu92", "1.7.0", 790, _VOLTA, _NVTX, reads_s3=True),
    _gpu_wheel("mxnet-cu90", "1.6.0.post0", 596, _VOLTA, reads_s3=True),
)
"""In the order of preference. The wheels of CUDA 9 and of 1.7.0 contain cuDNN."""

_BY_REQUIREMENT: Mapping[str, Wheel] = {wheel.requirement: wheel for wheel in WHEELS}


def find_wheel(requirement: str) -> Wheel | None:
    """The wheel of a requirement such as "mxnet-cu112==1.9.1", in any spelling (PEP 503); None if not in the table."""
    name, _, version = requirement.partition("==")
    return _BY_REQUIREMENT.get(f"{sub(r'[-_.]+', '-', name).lower()}=={version}")
