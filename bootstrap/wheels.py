"""Which packages a node's environment is made of: pure decisions over the measured table of MXNet's wheels."""

from collections.abc import Sequence
from dataclasses import dataclass

from bootstrap.facts import NodeFacts
from provision.errors import ClusterError, ConfigError

# MXNet's wheels are pure ctypes; uv, which makes the environment, begins at Python 3.8. NumPy 1.26, the last that MXNet
# can be made to work with (_cluster_compat.py puts np.bool and its kin back), has wheels up to 3.12; with NumPy 2
# `import mxnet` fails: np.PZERO is gone.
OLDEST_PYTHON = (3, 8)
NEWEST_PYTHON = (3, 12)

CPU_WHEEL = "mxnet==1.7.0.post2"  # the newest CPU wheel that reads s3:// by itself

# mxnet-cu112 1.9.1 has machine code for sm_ 50 60 70 80 86 and no PTX (read off its fat binaries). Machine code runs
# on its own major version, from its minor version up.
GPU_WHEEL = "mxnet-cu112==1.9.1"
GPU_WHEEL_CODE = ((5, 0), (6, 0), (7, 0), (8, 0), (8, 6))
# What that wheel loads beside the driver's libcuda.so.1; PyPI has it all.
GPU_WHEEL_LIBRARIES = (
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
)


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelTarget:
    """What wheels are fetched for; nodes that are alike share one. `requirements` are PEP 508 strings."""

    python_version: tuple[int, int]
    machine: str
    glibc: tuple[int, int]
    requirements: tuple[str, ...]


def choose_wheels(facts: NodeFacts, *, mxnet: str, packages: Sequence[str], node: str) -> WheelTarget:
    """Decide for one node; `mxnet` and `packages` are [bootstrap]'s. Pure.

    Raises ClusterError when no wheel can run there, saying why.
    """
    if not OLDEST_PYTHON <= facts.python_version <= NEWEST_PYTHON:
        version = ".".join(map(str, facts.python_version))
        raise ClusterError(
            f"{node}: {facts.python} is Python {version}; MXNet can be set up on 3.8 to 3.12",
            hint="set [bootstrap] python to another Python of the nodes, or take another image",
        )
    if facts.machine != "x86_64":
        raise ClusterError(
            f"{node}: its processor is {facts.machine}; MXNet's wheels are made for x86_64 alone",
            hint="set [provision] instance_type to a type with Intel or AMD processors",
        )
    if mxnet == "auto":
        mxnet = choose_mxnet(facts, node=node)
    elif "==" not in mxnet:
        raise ConfigError(
            f'bootstrap.mxnet = "{mxnet}": without a version the nodes could get different ones',
            hint=f'write "{mxnet}==..." with the version you want',
        )
    libraries = GPU_WHEEL_LIBRARIES if mxnet == GPU_WHEEL else ()
    # setuptools has the distutils that Python 3.12 dropped and MXNet imports.
    numpy = ("numpy<1.24",) if facts.python_version < (3, 12) else ("numpy<2", "setuptools<81")
    return WheelTarget(
        python_version=facts.python_version,
        machine=facts.machine,
        glibc=facts.glibc,
        requirements=(mxnet, *numpy, *libraries, *packages),
    )


def choose_mxnet(facts: NodeFacts, *, node: str) -> str:
    """The MXNet wheel that has code for a node's GPUs, or the CPU wheel. Pure. Raises ClusterError if none has."""
    for capability, name in facts.gpus:
        major, _, minor = capability.partition(".")
        version = int(major), int(minor)
        if not any(code[0] == version[0] and code[1] <= version[1] for code in GPU_WHEEL_CODE):
            raise ClusterError(
                f"{node}: no MXNet wheel has code for {name} (compute capability {capability})",
                hint="take a type with V100, T4, A100, A10G, L4 or L40S GPUs, such as g5.xlarge",
            )
    return GPU_WHEEL if facts.gpus else CPU_WHEEL


def platform_tags(target: WheelTarget) -> list[str]:
    """The platform tags, newest first, of wheels that run on the target (PEP 600 and the older names). Pure."""
    major, minor = target.glibc
    tags = [f"manylinux_{major}_{n}_{target.machine}" for n in range(minor, 4, -1)]
    older = {(2, 17): "manylinux2014", (2, 12): "manylinux2010", (2, 5): "manylinux1"}
    return tags + [f"{name}_{target.machine}" for glibc, name in older.items() if target.glibc >= glibc]
