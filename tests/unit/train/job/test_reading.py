"""Who reads s3:// in a job, and what the user is told of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foundation.errors import ConfigError
from job_world import node, plan
from train.job.config import DataConfig, TrainConfig
from train.job.payload import read_program
from train.job.placement import Placement
from train.job.reading import Reading, guess_ranks, plan_reading, reading_environment, reading_warnings, render_reading

READS, CANNOT = "mxnet==1.7.0.post2", "mxnet==1.9.1"


@pytest.mark.parametrize(
    ("mode", "library", "chosen", "why"),
    [
        ("auto", READS, "native", f"{READS} can"),
        ("auto", CANNOT, "stage", f"{CANNOT} cannot read s3://"),
        ("auto", "mxnet-cu112==1.9.1", "stage", "mxnet-cu112==1.9.1 cannot read s3://"),
        ("auto", "source@v1.7.x", "stage", "source@v1.7.x may not read s3://"),
        ("native", READS, "native", f"{READS} can"),
        ("native", "source@v1.7.x", "native", "as [data] mode says"),
        ("stage", READS, "stage", "as [data] mode says"),
    ],
)
def test_who_reads(mode: Any, library: str, chosen: str, why: str) -> None:
    reading = plan_reading(DataConfig(mode=mode), library=library)
    assert (reading.mode, reading.why) == (chosen, why)


INDEXED = "data = mx.gluon.data.vision.ImageRecordDataset(url)"


@pytest.mark.parametrize(
    ("mode", "library", "chosen", "why"),
    [
        ("auto", READS, "stage", "ImageRecordDataset cannot read s3://"),
        ("auto", CANNOT, "stage", f"{CANNOT} cannot read s3://"),
        ("native", READS, "native", f"{READS} can"),
    ],
)
def test_a_program_whose_readers_cannot_read_natively(mode: Any, library: str, chosen: str, why: str) -> None:
    reading = plan_reading(DataConfig(mode=mode), library=library, program=INDEXED)
    assert (reading.mode, reading.why) == (chosen, why)
    expected = (
        'data.mode = "native": ImageRecordDataset, in the program, cannot read s3:// so: set [data] mode = "stage"'
    )
    assert reading_warnings(reading, TrainConfig()) == ((expected,) if mode == "native" else ())


def test_a_job_whose_program_needs_it_has_its_data_staged() -> None:
    data = DataConfig(url="s3://bucket/d/")
    assert plan(TrainConfig(), 2, data=data, program=INDEXED).reading.mode == "stage"
    assert plan(TrainConfig(), 2, data=data).reading.mode == "native"


@pytest.mark.parametrize(
    ("script", "command", "text"),
    [
        ("own.py", (), INDEXED),
        ("train_mnist.py", (), ""),  # it ships with the project
        ("train_mnist.py", ("python3", "-u", "own.py", "--lr", "1"), INDEXED),
        ("own.py", ("python", "-m", "own"), ""),
        ("own.py", ("bash", "own.py.txt"), ""),
    ],
)
def test_the_text_of_a_program(tmp_path: Path, script: str, command: tuple[str, ...], text: str) -> None:
    (tmp_path / "own.py").write_text(INDEXED)
    (tmp_path / "own.py.txt").write_text("other")
    assert read_program(script, command=command, project_dir=tmp_path) == text


def test_mxnet_is_not_made_to_read_what_it_cannot() -> None:
    with pytest.raises(ConfigError, match=r'data.mode = "native": mxnet==1.9.1 cannot read s3://') as error:
        plan_reading(DataConfig(mode="native"), library=CANNOT)
    assert error.value.hint == 'set [data] mode = "stage", or "auto"'


@pytest.mark.parametrize(
    ("max_duration", "options", "said"),
    [
        ("none", {"credentials_left_s": 3600.0}, "end in 1 h"),
        ("none", {"credentials_left_s": 2 * 3600.0}, None),  # said beside where S3 is
        ("2h", {"credentials_left_s": 3600.0}, "after 1 h"),
        ("1h", {"credentials_left_s": 3600.0}, None),
        ("2h", {}, None),
        ("7h", {"nodes_credentials": True}, "after 6 h"),
        ("6h", {"nodes_credentials": True}, None),
    ],
)
def test_a_job_longer_than_its_credentials(max_duration: str, options: dict[str, Any], said: str | None) -> None:
    config = TrainConfig(max_duration=max_duration)
    left_s = options.get("credentials_left_s")
    warnings = reading_warnings(plan_reading(DataConfig(), library=READS, **options), config, credentials_left_s=left_s)
    assert [said in warning for warning in warnings if said] == [True] * (said is not None)
    assert reading_warnings(plan_reading(DataConfig(mode="stage"), library=READS, **options), config) == ()


@pytest.mark.parametrize(
    ("reading", "said"),
    [
        (Reading(mode="native", why="it can"), "read by MXNet itself (it can)"),
        (
            Reading(mode="native", why="it can", limit_s=43199.5),
            "read by MXNet itself (it can), for 11 h 59 min at most",
        ),
        (Reading(mode="stage", why="it cannot"), "read from files staged on the nodes (it cannot)"),
    ],
)
def test_the_limit_is_said_before_the_start(reading: Reading, said: str) -> None:
    assert render_reading(reading) == said


def placement(**workers: int) -> Placement:
    """Nodes a, b, c with addresses of different lengths."""
    nodes = {name: node(5 + number) for number, name in enumerate("abc")}
    named = tuple(replace(nodes[name], host=replace(nodes[name].host, name=name)) for name in workers)
    return Placement(nodes=named, hostfile=(), workers=workers, servers={})


def test_ranks_are_guessed_as_ps_lite_gives_them() -> None:
    assert guess_ranks(placement(a=1, b=2, c=0)) == ["a", "b", "b"]
    assert guess_ranks(placement(b=1, c=1)) == ["c", "b"]


def test_what_workers_are_told() -> None:
    stage = plan_reading(DataConfig(mode="stage"), library=READS)
    data = DataConfig(mode="stage", cache_gib=20.0, cache_dir="/data/cache")
    assert reading_environment(stage, data, placement(a=1, b=1), nodes_credentials=True) == {
        "CLUSTER_DATA_MODE": "stage",
        "CLUSTER_DATA_RANKS": "a b",
        "CLUSTER_DATA_CACHE_GIB": "20.0",
        "CLUSTER_DATA_CACHE_DIR": "/data/cache",
        "CLUSTER_DATA_CREDENTIALS": "instance",
    }
    native = plan_reading(DataConfig(), library=READS)
    assert reading_environment(native, data, placement(a=1), nodes_credentials=True) == {}


def test_a_job_tells_its_workers() -> None:
    data = DataConfig(url="s3://bucket/d/", mode="stage")
    assert plan(TrainConfig(), 2, data=data).env["CLUSTER_DATA_RANKS"] == "node-1 node-0"
    said = plan(TrainConfig(max_duration="2h"), 2, credentials_left_s=60.0).warnings
    assert [line for line in said if 'set [provision] instance_profile = "auto"' in line]


def test_staged_data_needs_credentials_that_last_as_well() -> None:
    """Nobody renews those of the user's machine on the nodes."""
    staged = plan_reading(DataConfig(mode="stage"), library=READS, credentials_left_s=3600.0)
    (said,) = reading_warnings(staged, TrainConfig(max_duration="2h"), credentials_left_s=3600.0)
    assert 'set [provision] instance_profile = "auto"' in said
