"""botocore's descriptions of services in short: what is kept of them, and that botocore goes by it."""

from pathlib import Path
from typing import Any

import botocore.session
import pytest

from provision.aws import make_clients
from provision.service_data import find_loader, shorten
from train.answering import OPERATIONS

REGION = "eu-west-1"
EC2 = "ec2.2016-11-15.service-2.json"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_PROFILE", "AWS_DATA_PATH", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def kept(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def test_only_the_shapes_that_the_operations_need_are_kept() -> None:
    shapes: dict[str, Any] = {
        "Asked": {"type": "structure", "members": {"Names": {"shape": "Names"}, "shape": {"shape": "Shape"}}},
        "Names": {"type": "list", "member": {"shape": "Name", "locationName": "item"}},
        "Name": {"type": "string"},
        "Shape": {"type": "structure", "members": {"Self": {"shape": "Shape"}}},
        "Failure": {"type": "structure", "members": {}},
        "Other": {"type": "string"},
    }
    asking = {"name": "Ask", "input": {"shape": "Asked"}, "errors": [{"shape": "Failure"}]}
    operations = {"Ask": asking, "Else": {"name": "Else", "input": {"shape": "Other"}}}
    short = shorten({"metadata": {"a": 1}, "operations": operations, "shapes": shapes}, frozenset({"Ask"}))
    assert short["metadata"] == {"a": 1}
    assert short["operations"] == {"Ask": asking}
    assert set(short["shapes"]) == set(shapes) - {"Other"}


@pytest.mark.parametrize("service", sorted(OPERATIONS))
def test_a_short_description_says_the_same_of_its_operations(service: str, tmp_path: Path) -> None:
    """Both when it is made and when it is read again."""
    whole = botocore.session.get_session().get_service_model(service)
    for _ in range(2):
        session = botocore.session.get_session()
        session.register_component("data_loader", find_loader(tmp_path, OPERATIONS))
        short = session.get_service_model(service)
        assert set(short.operation_names) == OPERATIONS[service]
        for name in OPERATIONS[service]:
            one, other = short.operation_model(name), whole.operation_model(name)
            assert repr(one.input_shape) == repr(other.input_shape)
            assert repr(one.output_shape) == repr(other.output_shape)
            assert [shape.name for shape in one.error_shapes] == [shape.name for shape in other.error_shapes]


def test_clients_go_by_what_is_kept(tmp_path: Path) -> None:
    for _ in range(2):
        ec2 = make_clients(REGION, kept=tmp_path, operations=OPERATIONS).ec2
        assert ec2.meta.endpoint_url == f"https://ec2.{REGION}.amazonaws.com"
        assert ec2.can_paginate("describe_instances")
        assert not hasattr(ec2, "run_instances")
    assert (kept(tmp_path) / EC2).stat().st_size < 200_000
    # And others go by all that there is.
    assert hasattr(make_clients(REGION).ec2, "run_instances")


@pytest.mark.parametrize("damage", [pytest.param("", id="empty"), pytest.param("\0" * 100, id="zeros")])
def test_what_is_damaged_is_made_anew(tmp_path: Path, damage: str) -> None:
    make_clients(REGION, kept=tmp_path, operations=OPERATIONS)
    path = kept(tmp_path) / EC2
    whole = path.read_bytes()
    path.write_text(damage)
    assert make_clients(REGION, kept=tmp_path, operations=OPERATIONS).ec2.can_paginate("describe_instances")
    assert path.read_bytes() == whole


def test_a_folder_that_takes_nothing_does_not_matter(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("in the way")
    assert make_clients(REGION, kept=place, operations=OPERATIONS).ec2.can_paginate("describe_instances")


def test_who_has_descriptions_of_his_own_gets_those(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_DATA_PATH", str(tmp_path / "mine"))
    assert hasattr(make_clients(REGION, kept=tmp_path / "kept", operations=OPERATIONS).ec2, "run_instances")
    assert not (tmp_path / "kept").exists()


def test_who_calls_others_does_not_get_what_was_kept_for_less(tmp_path: Path) -> None:
    for names in (frozenset({"DescribeInstances"}), frozenset({"DescribeInstances", "DescribeVolumes"})):
        session = botocore.session.get_session()
        session.register_component("data_loader", find_loader(tmp_path, {"ec2": names}))
        assert set(session.get_service_model("ec2").operation_names) == names
