"""Where a node's framework comes from, and the environment that it gets."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from bootstrap.config import BootstrapConfig
from bootstrap.environment.bundle import Bundle
from bootstrap.environment.cuda import find_warnings
from bootstrap.environment.facts import FoundFramework, FoundPython, NodeFacts
from bootstrap.environment.file_cache import BundleFile
from bootstrap.environment.framework import ANY_PYTHONS, Torch, explain_ignored
from bootstrap.environment.requirements import Requirements
from bootstrap.environment.steps import MakeEnvironment
from bootstrap.environment.target import WheelTarget, choose_target
from foundation.errors import ClusterError, ConfigError
from node_facts import FACTS, TARGET, run_shell

DEBIAN = FoundFramework(
    name="torch",
    version="1.13.1",
    cuda=None,
    numpy="1.24.2",
    python=FoundPython(path="/usr/bin/python3", version=(3, 11)),
)
AMI = FoundFramework(
    name="torch",
    version="2.8.0+cu128",
    cuda=(12, 8),
    numpy="2.1.0",
    python=FoundPython(path="/opt/pytorch/bin/python3", version=(3, 12)),
)
MXNET = replace(AMI, name="mxnet", version="1.9.1", cuda=None, python=FoundPython(path="/v/bin/python", version=(3, 9)))
A10G = {"gpus": (("8.6", "NVIDIA A10G"),), "displays": ("NVIDIA",), "driver": "570.133.20"}
PYTORCH = BootstrapConfig(framework="pytorch")
HERE = replace(PYTORCH, packages="here")


def locked(*requirements: str, python: str = "") -> Requirements:
    return Requirements(locked=requirements, python=python)


def choose(
    facts: NodeFacts,
    config: BootstrapConfig = PYTORCH,
    packages: Requirements = Requirements(),  # noqa: B008 - frozen
) -> WheelTarget:
    return choose_target(facts, config=config, packages=packages, node="n")


@pytest.mark.parametrize(
    ("found", "more", "config", "base", "first"),
    [
        ((), {}, {}, None, "torch==2.13.0"),
        ((DEBIAN,), {}, {}, DEBIAN, None),
        ((DEBIAN,), {}, {"torch": "torch==2.5.1"}, None, "torch==2.5.1"),
        ((DEBIAN,), {}, {"python": "3.10"}, None, "torch==2.13.0"),
        ((replace(DEBIAN, python=FoundPython(path="/p", version=(3, 8))),), {}, {}, None, "torch==2.13.0"),
        ((DEBIAN, AMI), A10G, {}, AMI, None),
        ((DEBIAN,), A10G, {}, None, "torch==2.8.0"),  # a CPU build; the driver is too old for CUDA 13
        ((AMI,), {"gpus": (("5.2", "Tesla M60"),)}, {}, None, "torch==2.7.1"),  # no code for this GPU
        ((AMI,), {**A10G, "driver": "470.82.01"}, {}, None, "torch==2.13.0"),  # for every CUDA 12, too
        ((), {**A10G, "driver": "580.65.06"}, {}, None, "torch==2.13.0"),
        ((AMI,), {}, {"framework": "none"}, None, None),
    ],
)
def test_where_pytorch_comes_from(
    found: tuple[FoundFramework, ...],
    more: dict[str, object],
    config: dict[str, str],
    base: FoundFramework | None,
    first: str | None,
) -> None:
    facts = replace(FACTS, frameworks=found, **more)
    target = choose(facts, BootstrapConfig(**{"framework": "pytorch", **config}))  # type: ignore[arg-type]
    assert (target.base, next(iter(target.requirements), None), target.mxnet) == (base, first, None)


def test_the_environment_of_a_base_keeps_its_python_and_numpy() -> None:
    packages = Requirements(lines=("pandas", "torch>=2"), limits=("pandas<3", "torch==2.4.0"))
    target = choose(replace(FACTS, frameworks=(AMI,)), packages=packages)
    assert (target.python_version, target.python_path) == ((3, 12), AMI.python.path)
    assert (target.requirements, target.limits) == (("pandas",), ("numpy==2.1.0", "pandas<3"))


@pytest.mark.parametrize(
    ("more", "config", "message"),
    [
        ({"gpus": (("3.7", "Tesla K80"),)}, {}, "no wheel with code for Tesla K80"),
        ({"gpus": (("", "Unheard of"),)}, {}, "does not report the compute capability"),
        ({"gpus": (("9.0", "NVIDIA H100"),)}, {"torch": "torch==2.0.1"}, "n: torch==2.0.1 has no machine code for"),
        ({}, {"torch": "torch==2.4.1", "python": "3.13"}, "torch==2.4.1 works with 3.9 to 3.12"),
    ],
)
def test_what_cannot_work_is_refused(more: dict[str, object], config: dict[str, str], message: str) -> None:
    facts = replace(FACTS, **more)
    with pytest.raises(ClusterError, match=message) as caught:
        choose(facts, BootstrapConfig(**{"framework": "pytorch", **config}))  # type: ignore[arg-type]
    assert caught.value.hint


def test_an_installed_mxnet() -> None:
    config = BootstrapConfig(mxnet="installed", python="/v/bin/python")
    facts = replace(FACTS, configured=MXNET.python, frameworks=(MXNET,))
    target = choose(facts, config)
    assert (target.base, target.mxnet, target.requirements) == (MXNET, None, ())
    with pytest.raises(ClusterError, match="/v/bin/python finds no MXNet") as caught:
        choose(replace(facts, frameworks=()), config)
    assert "/v/bin/python -m pip install mxnet==" in (caught.value.hint or "")
    with pytest.raises(ClusterError, match="no working Python there"):
        choose(replace(facts, configured=None), config)
    with pytest.raises(ConfigError, match=r"contradicts .* locks MXNet"):
        choose(facts, config, locked("mxnet==1.7.0.post2"))


def test_a_locked_project_decides() -> None:
    target = choose(
        replace(FACTS, frameworks=(DEBIAN,)), packages=locked("torch==2.4.1", "six==1.16.0", "numpy==1.26.4")
    )
    assert target.base is None
    assert {"torch==2.4.1", "six==1.16.0", "numpy==1.26.4"} <= set(target.requirements)
    mxnet = BootstrapConfig()
    assert choose(FACTS, mxnet, locked("mxnet==1.9.1")).mxnet == "mxnet==1.9.1"
    assert choose(FACTS, mxnet, locked("numpy==2.0; python_version < '3.10'")).mxnet == "mxnet==1.7.0.post2"


@pytest.mark.parametrize(
    ("config", "packages", "message"),
    [
        ({"mxnet": "mxnet==1.9.1"}, locked("mxnet==1.7.0.post2"), "which locks mxnet==1.7.0.post2"),
        ({"framework": "pytorch", "torch": "torch==2.8.0"}, locked("torch==2.4.1"), "which locks torch==2.4.1"),
        ({}, locked(python=">=3.13"), r"locked for >=3\.13"),
    ],
)
def test_a_lock_that_contradicts_is_refused(config: dict[str, str], packages: Requirements, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        choose(FACTS, BootstrapConfig(**config), packages)  # type: ignore[arg-type]


def bundle_of(*names: str, base: FoundFramework | None = None) -> Bundle:
    target = replace(TARGET, requirements=(), framework="pytorch", base=base)
    files = (*names, "uv-1-none.whl")
    made = (BundleFile(path=Path(name), sha256=name.encode().hex(), size_bytes=1) for name in files)
    return Bundle(target=target, files=tuple(made))


@pytest.mark.parametrize(
    ("bundle", "torch", "library"),
    [
        (bundle_of("torch-2.13.0+cpu-none.whl"), Torch(version="2.13.0+cpu", has_cuda=False), "torch==2.13.0+cpu"),
        (
            bundle_of("torch-2.13.0-none.whl", "nvidia_cublas-13-none.whl"),
            Torch(version="2.13.0", has_cuda=True),
            "torch==2.13.0",
        ),
        (bundle_of(base=AMI), Torch(version="2.8.0+cu128", has_cuda=True), "torch==2.8.0+cu128"),
        (bundle_of(base=MXNET), None, "mxnet==1.9.1"),
        (bundle_of("torchvision-1-none.whl"), None, ""),
    ],
)
def test_what_an_environment_has(bundle: Bundle, torch: Torch | None, library: str) -> None:
    assert (bundle.torch, bundle.library) == (torch, library)


def test_an_environment_finds_the_packages_of_its_base(tmp_path: Path) -> None:
    """Runs only the lines that write the .pth file, without wheels and uv."""
    step = MakeEnvironment(bundle=bundle_of(base=DEBIAN), python="/p", with_modules=False)
    site = tmp_path / "env" / "x" / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    done = run_shell("\n".join(["cd", *step._write_pth("env/x")]), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "site.addsitedir('/usr/" in (site / "_cluster_base.pth").read_text()


def test_warnings_about_gpus() -> None:
    target = bundle_of().target
    facts = replace(FACTS, **A10G)
    (message,) = find_warnings(facts, target, Torch(version="2.13.0+cpu", has_cuda=False))
    assert "is a CPU build" in message
    (message,) = find_warnings(facts, target, Torch(version="2.13.0", has_cuda=True))
    assert "CUDA 13.0 needs the NVIDIA driver 580.65 or later" in message
    assert find_warnings(facts, target, Torch(version="2.8.0+cu128", has_cuda=True)) == ()
    (message,) = find_warnings(replace(FACTS, displays=("NVIDIA",)), target)
    assert "PyTorch will not see them" in message
    assert find_warnings(replace(FACTS, displays=("NVIDIA",)), replace(target, framework="none")) == ()
    assert ANY_PYTHONS[0] == (3, 9)


@pytest.mark.parametrize(
    ("requirement", "config", "remedy"),
    [
        ("torch", PYTORCH, None),
        ("torch>=2", PYTORCH, "chooses the version"),
        ("torch==2.1.0", BootstrapConfig(framework="pytorch", torch="torch==2.1.0+cu118"), None),
        ("torch==2.1.0", PYTORCH, 'to install it: torch = "torch==2.1.0"'),
        ("torch==2.13.0", PYTORCH, None),
        ("torch==2.13.0+cpu", HERE, None),
        ("torch==2.1.0+cpu", HERE, 'to install it: torch = "torch==2.1.0"'),
        ("mxnet-cu112==1.9.1", BootstrapConfig(), 'to install it: mxnet = "mxnet-cu112==1.9.1"'),
        ("torch==2.1.0", BootstrapConfig(), None),  # an ordinary package there
    ],
)
def test_a_version_in_the_requirements(requirement: str, config: BootstrapConfig, remedy: str | None) -> None:
    message = explain_ignored(requirement, config)
    assert (message or "").endswith(remedy or "")
    assert (message is None) == (remedy is None)
