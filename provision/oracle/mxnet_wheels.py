"""MXNet's wheels on PyPI: what each has code for, reads and needs. Data, measured; see `Wheel` for how."""

from collections.abc import Mapping
from dataclasses import dataclass
from re import sub

from provision.oracle.gpus import Version


@dataclass(frozen=True, kw_only=True, slots=True)
class Wheel:
    """One wheel for Linux on x86-64, all of them pure ctypes.

    size_mb: of the file, in units of a million bytes.
    cuda: the CUDA that it was built with; None for the CPU wheels.
    code, ptx: the compute capabilities that its libmxnet.so has machine code and PTX for, `cluster oracle --wheel`'s
        result; `modules` counts its fat binaries, `ptx_modules` those of them that hold PTX.
    reads_s3: whether it opens s3:// by itself; tried, and otherwise it says "Please compile with DMLC_USE_S3=1".
    needs: the CUDA libraries that it loads (`readelf -d`) beside the driver's libcuda.so.1.
    packages: what brings all of `needs` from PyPI; () where nothing on PyPI does.
    libraries_cuda: the CUDA that those libraries are of, on which it depends which GPUs they know.
    """

    name: str
    version: str
    size_mb: int
    reads_s3: bool
    cuda: Version | None = None
    code: tuple[Version, ...] = ()
    ptx: tuple[Version, ...] = ()
    modules: int = 0
    ptx_modules: int = 0
    needs: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    libraries_cuda: Version | None = None

    @property
    def requirement(self) -> str:
        """As pip and [bootstrap] mxnet have it: mxnet-cu112==1.9.1."""
        return f"{self.name}=={self.version}"

    @property
    def is_complete(self) -> bool:
        """Whether PyPI has all that it needs, so that it runs on any image with a driver (or none, on a CPU)."""
        return self.cuda is None or bool(self.packages)


def _capabilities(*numbers: int) -> tuple[Version, ...]:
    """Of numbers as nvcc writes them: 86 is (8, 6)."""
    return tuple(divmod(number, 10) for number in numbers)


def _libraries(version: str, **other: str) -> tuple[str, ...]:
    """The libraries of a CUDA toolkit; those whose version is not the toolkit's are named."""
    names = ("cublas", "cudart", "cufft", "curand", "cusolver", "nvrtc")
    return tuple(f"lib{name}.so.{other.get(name, version)}" for name in names)


_PTX_70 = _capabilities(70)
_PTX_70_75 = _capabilities(70, 75)
_VOLTA = _capabilities(30, 35, 50, 52, 60, 61, 70)
_TURING = _capabilities(30, 35, 50, 52, 60, 61, 70, 75)
_CUDNN_8 = ("libcudnn.so.8", "libnccl.so.2")
_NVTX = ("libnvToolsExt.so.1",)
_CUDA_10 = {"cublas": "10", "cufft": "10", "curand": "10", "cusolver": "10"}
_CUDA_11 = {"cublas": "11", "cufft": "10", "curand": "10", "cusolver": "10", "cudart": "11.0"}

CPU_WHEEL = Wheel(name="mxnet", version="1.7.0.post2", size_mb=55, reads_s3=True)
"""The newest CPU wheel that reads s3:// by itself."""

GPU_WHEEL = Wheel(
    name="mxnet-cu112",
    version="1.9.1",
    size_mb=499,
    reads_s3=False,
    cuda=(11, 2),
    code=_capabilities(50, 60, 70, 80, 86),
    modules=198,
    needs=_libraries("11.2", **_CUDA_11 | {"cusolver": "11"}) + _CUDNN_8 + _NVTX,
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
    # The last ones made for CUDA 11: cuBLAS 11.11 and cuDNN 8.9, with code for sm_50 to sm_90.
    libraries_cuda=(11, 8),
)
"""The one GPU wheel all of whose libraries PyPI has."""

WHEELS: tuple[Wheel, ...] = (
    CPU_WHEEL,
    Wheel(name="mxnet", version="1.5.1.post0", size_mb=25, reads_s3=True),
    Wheel(name="mxnet", version="1.6.0", size_mb=69, reads_s3=False),
    Wheel(name="mxnet", version="1.8.0.post0", size_mb=47, reads_s3=False),
    Wheel(name="mxnet", version="1.9.1", size_mb=49, reads_s3=False),
    GPU_WHEEL,
    Wheel(
        name="mxnet-cu110",
        version="1.9.1",
        size_mb=327,
        reads_s3=False,
        cuda=(11, 0),
        code=_capabilities(50, 60, 70, 80),
        modules=198,
        needs=_libraries("11.0", **_CUDA_11) + _CUDNN_8 + _NVTX,
        libraries_cuda=(11, 0),
    ),
    Wheel(
        name="mxnet-cu102",
        version="1.9.1",
        size_mb=381,
        reads_s3=False,
        cuda=(10, 2),
        code=_capabilities(30, 50, 60, 70, 75),
        modules=198,
        needs=_libraries("10.2", **_CUDA_10) + _CUDNN_8 + _NVTX,
        libraries_cuda=(10, 2),
    ),
    Wheel(
        name="mxnet-cu102",
        version="1.7.0",
        size_mb=896,
        reads_s3=True,
        cuda=(10, 2),
        code=_TURING,
        ptx=_PTX_70_75,
        modules=406,
        ptx_modules=351,
        needs=_libraries("10.2", **_CUDA_10) + _NVTX,
        libraries_cuda=(10, 2),
    ),
    Wheel(
        name="mxnet-cu101",
        version="1.7.0.post1",
        size_mb=846,
        reads_s3=True,
        cuda=(10, 1),
        code=_TURING,
        ptx=_PTX_70_75,
        modules=406,
        ptx_modules=351,
        needs=_libraries("10.1", **_CUDA_10) + _NVTX,
        libraries_cuda=(10, 1),
    ),
    Wheel(
        name="mxnet-cu100",
        version="1.7.0",
        size_mb=828,
        reads_s3=True,
        cuda=(10, 0),
        code=_TURING,
        ptx=_PTX_70_75,
        modules=406,
        ptx_modules=351,
        needs=_libraries("10.0") + _NVTX,
        libraries_cuda=(10, 0),
    ),
    Wheel(
        name="mxnet-cu92",
        version="1.7.0",
        size_mb=790,
        reads_s3=True,
        cuda=(9, 2),
        code=_VOLTA,
        ptx=_PTX_70,
        modules=402,
        ptx_modules=351,
        needs=_libraries("9.2") + _NVTX,
        libraries_cuda=(9, 2),
    ),
    Wheel(
        name="mxnet-cu90",
        version="1.6.0.post0",
        size_mb=596,
        reads_s3=True,
        cuda=(9, 0),
        code=_VOLTA,
        ptx=_PTX_70,
        modules=369,
        ptx_modules=318,
        needs=_libraries("9.0"),
        libraries_cuda=(9, 0),
    ),
)
"""In the order in which they are preferred. The wheels of CUDA 9 and of 1.7.0 hold cuDNN; they load none."""

_BY_REQUIREMENT: Mapping[str, Wheel] = {wheel.requirement: wheel for wheel in WHEELS}


def find_wheel(requirement: str) -> Wheel | None:
    """The wheel that "mxnet-cu112==1.9.1" means, in any spelling of its name (PEP 503); None when not in the table."""
    name, _, version = requirement.partition("==")
    return _BY_REQUIREMENT.get(f"{sub(r'[-_.]+', '-', name).lower()}=={version}")
