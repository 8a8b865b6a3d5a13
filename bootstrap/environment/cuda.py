"""Finds the CUDA libraries of an MXNet wheel on a node, and explains how to get those that are missing. Pure.

PyTorch's wheels include their libraries: for them, only the driver is checked.

A library fits a wheel if it belongs to the wheel's own CUDA version. Some names show that version (libcudart.so.10.2),
others do not (libcublas.so.10 is in CUDA 10.1 and in 10.2). So the directory decides: it must have the wheel's own
libcudart. From CUDA 11 on, all versions with the same major number share the name of libcudart, and a newer one runs
programs built with an older one (https://docs.nvidia.com/deploy/cuda-compatibility/#minor-version-compatibility). A
directory named after the exact version comes first.
"""

import re
from collections.abc import Sequence

from msgspec import Struct

from bootstrap.environment.facts import LibraryDir, NodeFacts
from bootstrap.environment.framework import LABELS, Torch
from bootstrap.environment.target import WheelTarget
from provision.oracle.tables import GPU_WHEEL, Version, find_wheel, show
from provision.oracle.torch import explain_driver, find_build, parse_torch

DRIVER = "libcuda.so.1"
# Libraries that are not part of the toolkit and fit several CUDA versions; their names show their own version.
SEPARATE = ("libcudnn.so.", "libnccl.so.")


class CudaLibraries(Struct, frozen=True, kw_only=True):
    """The CUDA libraries of a wheel on one node.

    library_dirs: absolute paths on the node, in the order in which the loader searches them.
    missing: the names of the libraries that were not found, including the driver's.
    """

    library_dirs: tuple[str, ...]
    missing: tuple[str, ...]


def find_cuda(facts: NodeFacts, mxnet: str) -> CudaLibraries:
    """The directories from which the wheel `mxnet` loads CUDA libraries that do not come from PyPI with it. Pure.

    Libraries that set-up commands install are unknown here; check_libraries.py finds them on the node.
    """
    cuda = cuda_of(mxnet)
    if cuda is None:
        return CudaLibraries(library_dirs=(), missing=())
    wheel = find_wheel(mxnet)
    needs = wheel.needs if wheel is not None else ()
    dirs = choose_library_dirs(facts.cuda_dirs, needs=needs, cuda=cuda)
    there = facts.libraries.union(*(found.names for found in dirs))
    if wheel is not None and wheel.packages:
        there |= set(needs)
    wanted = (*needs, DRIVER)
    missing = tuple(name for name in wanted if name not in there)
    return CudaLibraries(library_dirs=tuple(found.path for found in dirs), missing=missing)


def choose_library_dirs(found: Sequence[LibraryDir], *, needs: Sequence[str], cuda: Version) -> tuple[LibraryDir, ...]:
    """The directories of a node from which a wheel for `cuda` may load, in order. Pure."""
    cudart = next((name for name in needs if name.startswith("libcudart.so.")), _cudart(cuda))
    toolkits = [folder for folder in found if cudart in folder.names]
    # The sort is stable: it keeps the node's order.
    toolkits.sort(key=lambda folder: (_named_after(folder) != cuda, _named_after(folder) is not None))
    if cuda >= (11, 0):
        # An older minor version may lack functions that the wheel calls.
        toolkits = [folder for folder in toolkits if (_named_after(folder) or cuda) >= cuda]
    separate = [folder for folder in found if folder not in toolkits and _has_separate(folder) and _is_apart(folder)]
    return (*toolkits, *separate)


def _cudart(cuda: Version) -> str:
    return f"libcudart.so.{cuda[0]}.0" if cuda >= (11, 0) else f"libcudart.so.{show(cuda)}"


def _named_after(folder: LibraryDir) -> Version | None:
    match = re.search(r"(?:cuda|cudatoolkit)-([0-9]+)\.([0-9]+)", folder.path)
    return (int(match[1]), int(match[2])) if match else None


def _has_separate(folder: LibraryDir) -> bool:
    return any(name.startswith(SEPARATE) for name in folder.names)


def _is_apart(folder: LibraryDir) -> bool:
    """Whether a directory has no toolkit: a directory with cuDNN must not bring the cuBLAS of another CUDA."""
    return not any(name.startswith("libcudart.so.") for name in folder.names)


def cuda_of(mxnet: str) -> Version | None:
    """The CUDA version of a wheel, from the table or else from its name; None for CPU wheels. Pure."""
    wheel = find_wheel(mxnet)
    if wheel is not None:
        return wheel.cuda
    match = re.match(r"mxnet(?:[-_.]|-.*_)cu([0-9]+)([0-9])(?![0-9])", mxnet, re.IGNORECASE)
    return (int(match[1]), int(match[2])) if match else None


def find_warnings(facts: NodeFacts, target: WheelTarget, torch: Torch | None = None) -> tuple[str, ...]:
    """Warnings about problems that keep the framework from using a node's GPUs but do not prevent the set-up. Pure.

    torch: the environment's PyTorch.
    """
    if target.framework == "none":
        return ()
    name, mxnet = LABELS[target.framework], target.mxnet
    warnings = []
    nvidia = facts.displays.count("NVIDIA")
    if nvidia and not facts.gpus:
        warnings.append(f"it has {nvidia} NVIDIA GPU(s) but no working driver: {name} will not see them")
    if mxnet is not None and cuda_of(mxnet) is not None:
        missing = find_cuda(facts, mxnet).missing
        if missing:
            warnings.append(explain_missing_libraries(missing, mxnet))
    if torch is not None and facts.gpus:
        warnings += _find_torch_warnings(facts, torch)
    return tuple(warnings)


def _find_torch_warnings(facts: NodeFacts, torch: Torch) -> list[str]:
    if not torch.has_cuda:
        return [f"torch {torch.version} is a CPU build: it does not use the {facts.gpus[0][1]}"]
    requirement = f"torch=={torch.version}"
    version, build = parse_torch(requirement), find_build(requirement)
    cuda = (version.cuda if version is not None else None) or (build.cuda if build is not None else None)
    why = explain_driver(cuda, facts.driver) if cuda is not None else None
    return [f"torch {torch.version}: {why}: use an image with a newer driver ([provision] ami)"] if why else []


def explain_missing_libraries(names: Sequence[str], mxnet: str) -> str:
    """Names the libraries that a wheel lacks, the CUDA version that has them, and the ways to get them. Pure.

    `names` are names as the loader uses them (libcudart.so.9.0); `mxnet` is a requirement (mxnet-cu90==1.6.0.post0).
    """
    toolkit = [name for name in names if name != DRIVER]
    parts = []
    if toolkit:
        parts.append(_explain_toolkit(toolkit, mxnet))
    if DRIVER in names:
        parts.append(
            f"{DRIVER} is missing: there is no NVIDIA driver. Use an instance type with an NVIDIA GPU and an image "
            "with its driver ([provision] instance_type and ami)"
        )
    return "; ".join(parts)


def _explain_toolkit(names: Sequence[str], mxnet: str) -> str:
    cuda = cuda_of(mxnet)
    lack = f"{mxnet} needs {', '.join(names)}, which the node does not have"
    if cuda is None:
        return f"{lack}: install it with commands in [bootstrap] setup"
    folder = f"/usr/local/cuda-{show(cuda)}"
    return (
        f"{lack}: use an image with CUDA {show(cuda)} in {folder} ([provision] ami), commands that install it or load "
        f'its module ([bootstrap] setup), or mxnet = "{GPU_WHEEL.requirement}", which gets them from PyPI'
    )
