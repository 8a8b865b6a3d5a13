"""The Python and the wheels of a node."""

import pytest
from msgspec.structs import replace

from bootstrap.config import BootstrapConfig
from bootstrap.environment.facts import FoundPython, NodeFacts
from bootstrap.environment.requirements import Requirements
from bootstrap.environment.target import WheelTarget, choose_target
from foundation.errors import ClusterError
from node_facts import FACTS
from provision.oracle.tables import CPU_WHEEL, GPU_WHEEL

SIX = Requirements(lines=("six==1.16.0",))
MXNET = BootstrapConfig()


def choose(facts: NodeFacts, config: BootstrapConfig = MXNET, packages: Requirements = SIX) -> WheelTarget:
    return choose_target(facts, config=config, packages=packages, node="n")


def found(*versions: str) -> tuple[FoundPython, ...]:
    """Pythons as facts.sh finds them; "3.6!" is the image's own python3."""
    pythons = []
    for text in versions:
        major, minor = text.rstrip("!").split(".")
        path = "/usr/bin/python3" if text.endswith("!") else f"/usr/local/bin/python{text}"
        pythons.append(FoundPython(path=path, version=(int(major), int(minor))))
    return tuple(pythons)


@pytest.mark.parametrize(
    ("there", "setting", "version", "path"),
    [
        (("3.11!",), "auto", (3, 11), "/usr/bin/python3"),
        (("3.9!", "3.11"), "auto", (3, 9), "/usr/bin/python3"),
        (("3.13!", "3.10"), "auto", (3, 10), "/usr/local/bin/python3.10"),
        (("3.6!", "3.9", "3.12"), "auto", (3, 9), "/usr/local/bin/python3.9"),
        (("3.14!",), "auto", (3, 11), None),
        (("3.11!", "3.9"), "3.9", (3, 9), "/usr/local/bin/python3.9"),
        (("3.11!",), "3.10", (3, 10), None),
    ],
)
def test_a_python_is_chosen(there: tuple[str, ...], setting: str, version: tuple[int, int], path: str | None) -> None:
    target = choose(replace(FACTS, pythons=found(*there)), BootstrapConfig(python=setting))
    assert (target.python_version, target.python_path) == (version, path)


@pytest.mark.parametrize(
    ("there", "requires", "version", "path"),
    [
        (("3.12!",), ">=3.12", (3, 12), "/usr/bin/python3"),
        (("3.10!", "3.12"), ">=3.12", (3, 12), "/usr/local/bin/python3.12"),
        (("3.10!",), ">=3.12", (3, 12), None),
        (("3.12!",), "<3.11", (3, 10), None),
    ],
)
def test_a_python_for_a_project(
    there: tuple[str, ...], requires: str, version: tuple[int, int], path: str | None
) -> None:
    target = choose(replace(FACTS, pythons=found(*there)), packages=Requirements(python=requires))
    assert (target.python_version, target.python_path) == (version, path)


@pytest.mark.parametrize(
    ("change", "setting", "message"),
    [
        ({}, "/opt/python", '/opt/python": no working Python there'),
        ({"configured": FoundPython(path="/opt/p", version=(3, 7))}, "/opt/p", "is Python 3.7; MXNet works with 3.9"),
        ({"configured": FoundPython(path="/opt/p", version=(3, 13))}, "/opt/p", "is Python 3.13"),
    ],
)
def test_unsuitable_pythons_are_refused(change: dict[str, object], setting: str, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        choose(replace(FACTS, **change), BootstrapConfig(python=setting))


@pytest.mark.parametrize(
    ("change", "version", "mxnet", "first", "numpy"),
    [
        ({}, (3, 11), "auto", CPU_WHEEL.requirement, "numpy<1.24"),
        ({}, (3, 12), "auto", CPU_WHEEL.requirement, "numpy<2"),
        ({"gpus": (("8.6", "A10G"),)}, (3, 11), "auto", GPU_WHEEL.requirement, "numpy<1.24"),
        ({"gpus": (("9.0", "H100"),)}, (3, 11), "mxnet==1.9.1", "mxnet==1.9.1", "numpy<1.24"),
        ({"gpus": (("", "Unheard of"),)}, (3, 11), GPU_WHEEL.requirement, GPU_WHEEL.requirement, "numpy<1.24"),
        ({}, (3, 11), "mxnet-1.7.0-py3-none-any.whl", "mxnet-1.7.0-py3-none-any.whl", "numpy<1.24"),
    ],
)
def test_wheels_are_chosen_for_the_node(
    change: dict[str, object], version: tuple[int, int], mxnet: str, first: str, numpy: str
) -> None:
    facts: NodeFacts = replace(FACTS, pythons=(FoundPython(path="/p", version=version),), **change)
    target = choose(facts, BootstrapConfig(mxnet=mxnet), SIX)
    assert target.requirements[:2] == (first, numpy)
    assert target.requirements[-1] == "six==1.16.0"
    assert any("cudnn" in name for name in target.requirements) == (first == GPU_WHEEL.requirement)


@pytest.mark.parametrize(
    ("change", "mxnet", "message"),
    [
        ({"machine": "aarch64"}, "auto", "aarch64"),
        ({"gpus": (("9.0", "NVIDIA H100"),)}, "auto", "no MXNet wheel has code for NVIDIA H100"),
        ({"gpus": (("3.7", "Tesla K80"),)}, "auto", '"auto" has no MXNet wheel for Tesla K80'),
        ({"gpus": (("7.5", "T4"),)}, "mxnet-cu90==1.6.0.post0", "from CUDA 9.0, and the T4 needs CUDA 10.0"),
        ({"gpus": (("", "Unheard of"),)}, "auto", "does not report the compute capability of the Unheard of"),
    ],
)
def test_nodes_without_a_suitable_wheel_are_refused(change: dict[str, object], mxnet: str, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        choose(replace(FACTS, **change), BootstrapConfig(mxnet=mxnet))
