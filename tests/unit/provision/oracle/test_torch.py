import json

import pytest

from cluster.commands.oracle import make_document, render
from foundation.errors import ConfigError
from provision.oracle.tables import Gpu, find_machine, show
from provision.oracle.torch import (
    TORCH_BUILDS,
    check_torch,
    choose_numpy,
    explain_driver,
    explain_unfit,
    find_build,
    find_pythons,
    pick_torch,
)


def gpu_of(family: str) -> Gpu:
    machine = find_machine(family)
    assert machine is not None
    assert machine.gpu is not None
    return machine.gpu


def test_the_wheel_of_auto() -> None:
    wheels = {"g5": "torch==2.13.0", "p6-b200": "torch==2.13.0", "p3": "torch==2.8.0", "g3": "torch==2.7.1"}
    assert {family: pick_torch(gpu_of(family)) for family in wheels} == wheels
    assert pick_torch(gpu_of("p2")) is None
    assert pick_torch(gpu_of("g4ad")) is None


@pytest.mark.parametrize(
    ("requirement", "family", "fits"),
    [
        ("torch==1.13.1", "p2", True),
        ("torch==2.0.1+cu118", "p5", True),
        ("torch==2.7.1", "p6-b200", False),
        ("torch==2.7.1+cu128", "p6-b200", True),
    ],
)
def test_code_for_a_gpu(requirement: str, family: str, *, fits: bool) -> None:
    assert (explain_unfit(requirement, [gpu_of(family)]) is None) is fits


@pytest.mark.parametrize("requirement", ["torch==2.13.0+cpu", "torch==2.9.0+cu130"])
def test_cpu_builds_and_unknown_ones_are_not_refused(requirement: str) -> None:
    assert find_build(requirement) is None
    assert explain_unfit(requirement, [gpu_of("p5")]) is None


@pytest.mark.parametrize(
    ("instance_type", "torch", "messages"),
    [
        ("p5.48xlarge", "torch==2.13.0", ()),
        ("g5.xlarge", "auto", ()),
        ("g4ad.xlarge", "auto", ("Radeon", "AMD")),
        ("g5g.xlarge", "auto", ("arm64",)),
        ("g5.xlarge", "torch==2.13.0+cpu", ("does not use the A10G",)),
        ("q9.large", "auto", ("not in the table of GPUs",)),
    ],
)
def test_what_up_says(instance_type: str, torch: str, messages: tuple[str, ...]) -> None:
    warnings = check_torch(instance_type=instance_type, torch=torch)
    assert len(warnings) == bool(messages)
    assert all(word in warnings[0] for word in messages)


def test_up_refuses_a_wheel_without_code_for_the_gpu() -> None:
    with pytest.raises(ConfigError, match=r'instance_type = "p6-b200.48xlarge" .* \(it has sm_ 50 60 70 75') as caught:
        check_torch(instance_type="p6-b200.48xlarge", torch="torch==2.7.1")
    assert 'torch = "auto", which uses torch==2.13.0' in (caught.value.hint or "")
    with pytest.raises(ConfigError, match=r'instance_types, "p3.2xlarge"'):
        check_torch(instance_type="p3.2xlarge", torch="torch==2.15.0", is_other=True)


def test_drivers_pythons_and_numpy_of_versions() -> None:
    assert explain_driver((13, 0), "580.65.06") is None
    assert explain_driver((13, 0), None) is None
    assert explain_driver((13, 0), "570.133.20") is not None
    assert explain_driver((12, 8), "470.1") is not None
    assert find_pythons("torch==2.13.0") == ((3, 10), (3, 14))
    assert find_pythons("torch==1.13.1") == ((3, 9), (3, 10))
    assert (choose_numpy("torch==2.2.2"), choose_numpy("torch==2.3.0")) == ("numpy<2", "numpy")


def test_the_tables_are_shown() -> None:
    document = json.loads(json.dumps(make_document("pytorch")))
    rows = {line.partition("  ")[0]: line for line in render("pytorch", document).splitlines()}
    assert "torch==2.8.0" in rows["V100"]
    (h100,) = (machine for machine in document["machines"] if machine["family"] == "p5")
    assert (h100["gpu"]["name"], h100["auto"]) == ("H100", "torch==2.13.0")
    assert len(document["wheels"]) == len(TORCH_BUILDS)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("p5.48xlarge", 'H100 (compute capability 9.0), x86_64\ntorch = "auto" uses the image\'s PyTorch if it fits'),
        ("c5.xlarge", "every version runs on the CPU"),
        ("p2.xlarge", "else no wheel: none is known to run"),
    ],
)
def test_a_type_is_shown(name: str, words: str) -> None:
    document = make_document("pytorch", name)
    assert words in render("pytorch", document)
    assert [wheel["first"] for wheel in document["wheels"]] == [show(build.first) for build in TORCH_BUILDS]
