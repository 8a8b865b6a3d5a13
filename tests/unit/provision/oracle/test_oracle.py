"""Which MXNet wheel runs on which GPU, and which settings `up` rejects before they cost money."""

import gzip
import json
import re
from pathlib import Path

import moto.ec2
import pytest
from click.testing import CliRunner

from cluster.app import App
from cluster.commands.oracle import make_document, render
from cluster.commands.up import up as up_command
from foundation.errors import ConfigError
from provision.oracle.decide import check_mxnet, find_gpu_wheels, pick_for
from provision.oracle.tables import (
    CPU_WHEEL,
    GPU_MACHINES,
    GPU_WHEEL,
    WHEELS,
    Gpu,
    Wheel,
    find_machine,
)

REPOSITORY = Path(__file__).parents[4]
VOLTA = ["cu112 1.9.1", "cu110 1.9.1", "cu102 1.9.1", "cu102 1.7.0", "cu101 1.7.0.post1", "cu100 1.7.0", "cu92 1.7.0"]
VOLTA = [*VOLTA, "cu90 1.6.0.post0"]
KEPLER = [name for name in VOLTA if not name.startswith("cu11")]
TURING = [name for name in VOLTA if not name.startswith("cu9")]


def short(wheel: Wheel) -> str:
    return f"{wheel.name.removeprefix('mxnet-')} {wheel.version}"


@pytest.mark.parametrize(
    ("instance_type", "gpu", "auto", "wheels"),
    [
        ("p2.xlarge", Gpu(name="K80", capability=(3, 7)), None, KEPLER),
        ("g3.4xlarge", Gpu(name="M60", capability=(5, 2)), GPU_WHEEL, VOLTA),
        ("p3.2xlarge", Gpu(name="V100", capability=(7, 0)), GPU_WHEEL, VOLTA),
        ("g4dn.xlarge", Gpu(name="T4", capability=(7, 5)), GPU_WHEEL, TURING),
        ("p4d.24xlarge", Gpu(name="A100", capability=(8, 0)), GPU_WHEEL, ["cu112 1.9.1", "cu110 1.9.1"]),
        ("g5.xlarge", Gpu(name="A10G", capability=(8, 6)), GPU_WHEEL, ["cu112 1.9.1"]),
        ("p5.48xlarge", Gpu(name="H100", capability=(9, 0)), None, []),
    ],
)
def test_the_gpu_and_the_wheels_of_a_type(instance_type: str, gpu: Gpu, auto: Wheel | None, wheels: list[str]) -> None:
    machine = find_machine(instance_type)
    assert machine is not None
    assert (machine.gpu, machine.architecture) == (gpu, "x86_64")
    assert pick_for(machine) == auto
    assert [short(wheel) for wheel in find_gpu_wheels(gpu)] == wheels


@pytest.mark.parametrize(
    ("instance_type", "mxnet", "message", "hint"),
    [
        ("g4dn.xlarge", "mxnet-cu90==1.6.0.post0", "from CUDA 9.0, and the T4 needs CUDA 10.0", GPU_WHEEL.requirement),
        ("p5.48xlarge", "auto", "no MXNet wheel has code for H100 (compute capability 9.0)", "g5.xlarge"),
        ("p2.xlarge", "auto", "PyPI lacks the CUDA libraries", 'mxnet = "mxnet-cu102==1.9.1"'),
        ("c5.xlarge", "mxnet-cu112==1.9.1", "needs an NVIDIA GPU", CPU_WHEEL.requirement),
        ("g4ad.xlarge", "auto", "no MXNet wheel has code for Radeon Pro V520 (a GPU from AMD)", "g5.xlarge"),
        ("g5g.xlarge", "auto", "the type is arm64", "c5.xlarge"),
    ],
)
def test_rejects_what_cannot_work(instance_type: str, mxnet: str, message: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as raised:
        check_mxnet(instance_type=instance_type, mxnet=mxnet, ami="auto")
    assert f'[provision] instance_type = "{instance_type}"' in raised.value.message
    assert f'[bootstrap] mxnet = "{mxnet}"' in raised.value.message
    assert hint in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("instance_type", "mxnet", "ami", "warnings"),
    [
        ("c5.xlarge", "auto", "auto", []),
        ("g5.xlarge", "auto", "auto", []),
        ("g5.xlarge", "mxnet==1.9.1", "auto", ["does not use the A10G"]),
        ("g4dn.xlarge", "mxnet-cu102==1.7.0", "auto", ['the image of [provision] ami = "auto" does not']),
        ("p3dn.24xlarge", "auto", "auto", ["open driver"]),
        ("g5.xlarge", "mxnet-cu112==1.9.0", "auto", ["mxnet-cu112==1.9.0 is not in the table"]),
        ("p9.large", "mxnet-cu90==1.6.0.post0", "auto", ["p9.large is not in the table"]),
    ],
)
def test_what_may_work_is_not_refused(instance_type: str, mxnet: str, ami: str, warnings: list[str]) -> None:
    messages = check_mxnet(instance_type=instance_type, mxnet=mxnet, ami=ami)
    assert len(messages) == len(warnings)
    for got, words in zip(messages, warnings, strict=True):
        assert words in got


def test_families_are_what_ec2_says_they_are() -> None:
    """Compares each family's GPU, its maker and its processor with moto's copy of DescribeInstanceTypes."""
    place = Path(moto.ec2.__file__).parent / "resources" / "instance_types.json.gz"
    types = json.loads(gzip.decompress(place.read_bytes()))
    unknown = set()
    for name, info in types.items():
        machine = find_machine(name)
        if machine is None:
            unknown.add(name.partition(".")[0])
            continue
        listed = {(gpu["Manufacturer"], gpu["Name"]) for gpu in info.get("GpuInfo", {}).get("Gpus", [])}
        expected = set() if machine.gpu is None else {(machine.gpu.maker, machine.gpu.name)}
        assert listed == expected, name
        assert machine.architecture in info["ProcessorInfo"]["SupportedArchitectures"], name
    assert len(types) > 500
    assert {family for family in unknown if not family.startswith("mac")} == set()


def test_the_tables_are_shown() -> None:
    document = json.loads(json.dumps(make_document("mxnet")))
    text = render("mxnet", document)
    assert not [machine for machine in GPU_MACHINES if machine.family not in text]
    assert not [wheel for wheel in WHEELS if wheel.requirement not in text]
    (t4,) = (line for line in text.splitlines() if line.startswith("T4 "))
    assert t4.endswith("mxnet-cu112==1.9.1")
    (g5,) = (machine for machine in document["machines"] if machine["family"] == "g5")
    assert g5["gpu"] == {"name": "A10G", "maker": "NVIDIA", "compute_capability": "8.6"}
    assert (g5["auto"], g5["auto_reads_s3"]) == ("mxnet-cu112==1.9.1", False)
    assert len(document["wheels"]) == len(WHEELS)


def test_up_rejects_before_it_calls_aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(
        'name = "demo"\ncloud = "aws"\n[provision]\ninstance_type = "g4dn.xlarge"\n'
        '[bootstrap]\nmxnet = "mxnet-cu90==1.6.0.post0"\n'
    )
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # a call to AWS would fail with another error
    done = CliRunner().invoke(up_command, ["--yes"], obj=App(config_path=path))
    assert isinstance(done.exception, ConfigError)
    assert 'instance_type = "g4dn.xlarge" with [bootstrap] mxnet = "mxnet-cu90==1.6.0.post0"' in str(done.exception)
