"""The CUDA libraries of a wheel: their directories, missing ones, and how MXNet loads them on a node."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from bootstrap.environment.cuda import cuda_of, find_cuda, find_warnings
from bootstrap.environment.facts import LibraryDir
from node.programs import program_words
from node_facts import FACTS, NODE_PROGRAMS, TARGET
from provision.oracle.tables import WHEELS

CU90, CU102, CU110, CU112 = "mxnet-cu90==1.6.0.post0", "mxnet-cu102==1.9.1", "mxnet-cu110==1.9.1", "mxnet-cu112==1.9.1"
TEN = ("libcublas.so.10", "libcufft.so.10", "libcurand.so.10", "libcusolver.so.10", "libnvToolsExt.so.1")
CUDA_101 = ("/usr/local/cuda-10.1/lib64", "libcudart.so.10.1", "libnvrtc.so.10.1", *TEN)
CUDA_102 = ("/usr/local/cuda-10.2/lib64", "libcudart.so.10.2", "libnvrtc.so.10.2", *TEN)
CONDA_102 = ("/opt/conda/lib", "libcudart.so.10.2", "libnvrtc.so.10.2", *TEN)
CUDA_112 = ("/usr/local/cuda-11.2/lib64", "libcudart.so.11.0", "libcublas.so.11", "libcusolver.so.11")
CUDA_118 = ("/usr/local/cuda-11.8/lib64", "libcudart.so.11.0", "libcublas.so.11", "libcusolver.so.11", "libcudnn.so.8")
CUDNN = ("/opt/conda/pkgs/cudnn-8.2/lib", "libcudnn.so.8", "libnccl.so.2")


def dirs(*places: tuple[str, ...]) -> tuple[LibraryDir, ...]:
    return tuple(LibraryDir(path=path, names=frozenset(names)) for path, *names in places)


@pytest.mark.parametrize(
    ("mxnet", "there", "chosen"),
    [
        (CU102, (CUDA_101, CUDA_102), ("/usr/local/cuda-10.2/lib64",)),
        (CU102, (CUDA_101,), ()),
        (CU102, (CUDA_101, CONDA_102, CUDA_102), ("/usr/local/cuda-10.2/lib64", "/opt/conda/lib")),
        (CU102, (CONDA_102, CUDNN), ("/opt/conda/lib", "/opt/conda/pkgs/cudnn-8.2/lib")),
        # The cuDNN of CUDA 11.8 would bring the other libraries of that version.
        (CU102, (CUDA_102, CUDA_118), ("/usr/local/cuda-10.2/lib64",)),
        (CU110, (CUDA_118, CUDA_112), ("/usr/local/cuda-11.8/lib64", "/usr/local/cuda-11.2/lib64")),
        (CU112, (CUDA_118, CUDA_112), ("/usr/local/cuda-11.2/lib64", "/usr/local/cuda-11.8/lib64")),
        ("mxnet-cu113==2.0", (CUDA_112, CUDA_118), ("/usr/local/cuda-11.8/lib64",)),
        ("mxnet-cu101==9", (CUDA_101, CUDA_102), ("/usr/local/cuda-10.1/lib64",)),
        ("mxnet==1.7.0.post2", (CUDA_101, CUDA_102), ()),
    ],
)
def test_library_directories_match_the_wheels_cuda(
    mxnet: str, there: tuple[tuple[str, ...], ...], chosen: tuple[str, ...]
) -> None:
    assert find_cuda(replace(FACTS, cuda_dirs=dirs(*there)), mxnet).library_dirs == chosen


def test_every_wheel_knows_its_own_libcudart() -> None:
    for wheel in WHEELS:
        assert cuda_of(wheel.requirement) == wheel.cuda
        if wheel.cuda is not None:
            place = ("/usr/local/cuda/lib64", *wheel.needs)
            found = find_cuda(replace(FACTS, cuda_dirs=dirs(place)), wheel.requirement)
            assert found.library_dirs == ("/usr/local/cuda/lib64",)
            assert found.missing == ("libcuda.so.1",)


def test_gpu_warnings() -> None:
    cpu, gpu = (replace(TARGET, requirements=(wheel,)) for wheel in ("mxnet==1.7.0.post2", CU112))
    assert find_warnings(FACTS, cpu) == ()
    assert find_warnings(replace(FACTS, libraries=frozenset(["libcuda.so.1"])), gpu) == ()
    (message,) = find_warnings(replace(FACTS, displays=("NVIDIA", "NVIDIA")), cpu)
    assert "2 NVIDIA GPU(s) but no working driver" in message
    (message,) = find_warnings(FACTS, replace(TARGET, requirements=(CU90,)))
    assert "libcudart.so.9.0" in message


def build(path: Path, *, needs: tuple[Path, ...] = (), says: str | None = None) -> None:
    """Builds a real shared library that depends on others by name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name.replace(".", "_").replace("-", "_")
    source = f'const char *say_{name}(void) {{ return "{says}"; }}\n'
    links = [word for need in needs for word in (f"-L{need.parent}", f"-l:{need.name}")]
    command = ["cc", "-shared", "-fPIC", "-o", str(path), f"-Wl,-soname,{path.name}", "-x", "c", "-", "-x", "none"]
    # The needed libraries may be missing at load time.
    command += ["-Wl,--no-as-needed", *links, "-Wl,--unresolved-symbols=ignore-all"]
    subprocess.run(command, input=source, text=True, check=True)


@pytest.fixture
def env(tmp_path: Path) -> Path:
    """An environment whose libmxnet.so needs the driver's library and one of CUDA 10.2, which needs a third."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    cuda = tmp_path / "cuda-10.2"
    build(cuda / "libcublasLt.so.10")
    build(cuda / "libcublas.so.10", needs=(cuda / "libcublasLt.so.10",))
    build(tmp_path / "driver" / "libcuda.so.1")
    site = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    build(site / "mxnet" / "libmxnet.so", needs=(cuda / "libcublas.so.10", tmp_path / "driver" / "libcuda.so.1"))
    return tmp_path / "env"


def check(env: Path, *dirs: Path) -> tuple[list[str], list[str]]:
    """Runs check_libraries.py; returns the lines of .preload and .unresolved."""
    subprocess.run(program_words("check_libraries", str(env), "k1", "", *map(str, dirs)), check=True)
    return (env / ".preload").read_text().splitlines(), (env / ".unresolved").read_text().splitlines()


def test_the_real_loader_checks_the_libraries(env: Path, tmp_path: Path) -> None:
    cuda = tmp_path / "cuda-10.2"
    assert check(env) == ([], ["checked k1", "libcublas.so.10", "libcuda.so.1"])
    preload, unresolved = check(env, cuda)
    assert unresolved == ["checked k1", "libcuda.so.1"]
    assert sorted(preload) == [str(cuda / "libcublas.so.10"), str(cuda / "libcublasLt.so.10")]
    (cuda / "libcublasLt.so.10").unlink()
    assert check(env, cuda)[1] == ["checked k1", "libcublasLt.so.10", "libcuda.so.1"]


def test_importing_mxnet_preloads_its_libraries(env: Path, tmp_path: Path) -> None:
    """LD_LIBRARY_PATH is not set: the module that our environments import loads the libraries first."""
    check(env, tmp_path / "cuda-10.2", tmp_path / "driver")
    site = env / "lib" / "python3.11" / "site-packages"
    (site / "mxnet" / "__init__.py").write_text(
        "import ctypes, os\nctypes.CDLL(os.path.join(os.path.dirname(__file__), 'libmxnet.so'))\n"
    )
    (site / "numpy.py").write_text("")
    code = f"import sys; sys.prefix = {str(env)!r}; import _cluster_compat; import mxnet; print('there')"
    environment = {"PYTHONPATH": f"{site}:{NODE_PROGRAMS / 'startup'}", "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "there\n", done.stderr
    (env / ".preload").write_text("")
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert "libcublas.so.10" in done.stderr
