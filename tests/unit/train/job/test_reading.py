"""How a job reads s3://, the warnings about it, and the permissions of its credentials."""

import dataclasses
from typing import Any

import pytest

from foundation.errors import ConfigError
from job_world import NO_ACCESS, plan
from node.protocol import STAGED
from provision.aws.iam_policy import S3Scope
from provision.aws.s3_access import S3Access
from train.job.config import DataConfig, TrainConfig
from train.job.job_plan import name_prefix
from train.job.reading import (
    find_scope,
    plan_reading,
    plan_saved,
    plan_staged,
    reading_environment,
    reading_warnings,
    render_access,
)

READS, CANNOT = "mxnet==1.7.0.post2", "mxnet==1.9.1"
INDEXED = "data = mx.gluon.data.vision.ImageRecordDataset(url)"


@pytest.mark.parametrize(
    ("mode", "library", "program", "chosen", "why"),
    [
        ("auto", READS, "", "native", f"{READS} can"),
        ("auto", READS, INDEXED, "stage", "ImageRecordDataset cannot read s3://"),
        ("auto", CANNOT, "", "stage", f"{CANNOT} cannot read s3://"),
        ("auto", "mxnet-1.7.0-py3-none-any.whl", "", "stage", "mxnet-1.7.0-py3-none-any.whl may not read s3://"),
        ("native", READS, INDEXED, "native", f"{READS} can"),
        ("stage", READS, "", "stage", "set by [data] mode"),
    ],
)
def test_how_workers_read(mode: Any, library: str, program: str, chosen: str, why: str) -> None:
    reading = plan_reading(DataConfig(mode=mode), NO_ACCESS, library=library, program=program)
    assert (reading.mode, reading.why) == (chosen, why)
    assert reading_warnings(reading, TrainConfig(), NO_ACCESS) == []


D = "s3://bkt/d/"


@pytest.mark.parametrize(
    ("words", "program", "staged"),
    [
        (("--data", "s3://bkt/d/x"), "", "s3://bkt/d/x"),
        (("--data", "s3://other/x"), "", None),
        ((), 'os.environ["CLUSTER_DATA_DIR"]', D),
        (("sh", "-c", "ls $CLUSTER_DATA_DIR"), "", D),
        ((), 'os.environ["CLUSTER_DATA_URL"]', None),
    ],
)
def test_the_data_of_programs_without_mxnet(words: tuple[str, ...], program: str, staged: str | None) -> None:
    data = DataConfig(url=D, results="s3://bkt/results/")
    reading = plan_reading(data, NO_ACCESS, library="torch", framework="pytorch", program=program, words=words)
    assert reading.mode == ("own" if staged is None else "stage")
    assert plan_staged(data, "pytorch", words, program=program) == ([] if staged is None else [staged])


@pytest.mark.parametrize(
    ("url", "words", "mode"), [(D, (), "stage"), (None, ("--data", "s3://other/x"), "stage"), (None, (), "own")]
)
def test_the_data_of_a_shipped_script_without_mxnet(url: str | None, words: tuple[str, ...], mode: str) -> None:
    how: dict[str, Any] = {"library": "torch", "framework": "pytorch", "words": words, "is_shipped": True}
    assert plan_reading(DataConfig(url=url), NO_ACCESS, **how).mode == mode


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (("--data", "s3://bkt/d/x"), "import torch\nfrom s3torchconnector import S3MapDataset\n"),
        (("--data", "s3://bkt/d/x"), "def main():\n    import os, boto3, sys\n"),
        (("--out", "s3://bkt/d/x"), "from torch.distributed.checkpoint import FsspecWriter\n"),
        (("sh", "-c", "aws s3 cp s3://bkt/d/x . && python train.py"), ""),
    ],
)
def test_programs_that_read_s3_themselves_keep_their_urls(words: tuple[str, ...], program: str) -> None:
    data = DataConfig(url=D)
    reading = plan_reading(data, NO_ACCESS, library="torch", framework="pytorch", program=program, words=words)
    assert reading.mode == "own"
    assert plan_saved(DataConfig(results=D), words, program=program) == []


@pytest.mark.parametrize(
    ("words", "is_shipped", "staged"),
    [
        (("--data", "s3://bkt/d/x"), False, ["s3://bkt/d/x"]),
        (("--data-train", "s3://other/x"), True, ["s3://other/x"]),
        (("--model-prefix", "s3://bkt/models/net", "--out", "s3://bkt/results/x"), True, [D]),
        ((), False, []),
    ],
)
def test_the_data_of_mxnet(words: tuple[str, ...], is_shipped: bool, staged: list[str]) -> None:  # noqa: FBT001
    data = DataConfig(url=D, results="s3://bkt/results/")
    assert plan_staged(data, "mxnet", words, is_shipped=is_shipped) == staged


def test_where_a_job_saves() -> None:
    words = ("--model-prefix", "s3://bkt/models/net", "--out=s3://bkt/results/x", "--data", "s3://bkt/d/x")
    data = DataConfig(url=D, results="s3://bkt/results/")
    assert plan_saved(data, words) == ["s3://bkt/results/x", "s3://bkt/models/net"]
    assert plan_saved(DataConfig(url=D), words) == ["s3://bkt/models/net"]
    assert plan_saved(data, ("--data-train=s3://bkt/results/records/",)) == []


@pytest.mark.parametrize("prefix", [("--model-prefix", "auto"), ("--model-prefix=auto",)])
def test_the_automatic_prefix_is_in_the_jobs_folder_in_s3(prefix: tuple[str, ...]) -> None:
    args = name_prefix(("--lr", "1", *prefix, "--resume"), "s3://bkt/r/JOB/")
    assert plan_saved(DataConfig(), args) == ["s3://bkt/r/JOB/model"]
    for elsewhere in ("/shared/JOB/", None):
        assert name_prefix(prefix, elsewhere) == prefix


def test_native_mode_needs_an_mxnet_that_reads_s3() -> None:
    with pytest.raises(ConfigError, match=r'data.mode = "native": mxnet==1.9.1 cannot read s3://') as error:
        plan_reading(DataConfig(mode="native"), NO_ACCESS, library=CANNOT)
    assert error.value.hint == 'set [data] mode = "stage", or "auto"'


@pytest.mark.parametrize(
    ("max_duration", "options", "message"),
    [
        ("none", {"left_s": 3600.0}, "end in 1 h"),
        ("none", {"left_s": 2 * 3600.0}, None),  # the plan shows it with S3's address
        ("2h", {"left_s": 3600.0}, "after 1 h"),
        ("2h", {}, None),
        ("7h", {"of_nodes": True}, "after 6 h"),
    ],
)
def test_a_job_that_may_outlast_its_credentials_gets_a_warning(
    max_duration: str, options: dict[str, Any], message: str | None
) -> None:
    config = TrainConfig(max_duration=max_duration)
    access = dataclasses.replace(NO_ACCESS, **options)
    warnings = reading_warnings(plan_reading(DataConfig(), access, library=READS), config, access)
    assert [message in warning for warning in warnings if message] == [True] * (message is not None)
    nodes_own = dataclasses.replace(access, left_s=None)
    staged = plan_reading(DataConfig(mode="stage"), access, library=READS)
    assert reading_warnings(staged, config, nodes_own) == []


def test_the_variables_that_workers_get() -> None:
    stage = plan_reading(DataConfig(mode="stage"), NO_ACCESS, library=READS)
    data = DataConfig(mode="stage", cache_gib=20.0, cache_dir="/data/cache")
    assert reading_environment(stage, data, dataclasses.replace(NO_ACCESS, of_nodes=True)) == {
        "CLUSTER_DATA_MODE": "stage",
        "CLUSTER_DATA_CACHE_GIB": "20.0",
        "CLUSTER_DATA_CACHE_DIR": "/data/cache",
        "CLUSTER_DATA_CREDENTIALS": "instance",
    }
    native = plan_reading(DataConfig(), NO_ACCESS, library=READS)
    assert reading_environment(native, data, dataclasses.replace(NO_ACCESS, of_nodes=True)) == {}


def test_a_plan_has_the_variables_and_warnings() -> None:
    data = DataConfig(url="s3://bucket/d/", mode="stage")
    made = plan(TrainConfig(args=("s3://bucket/d/x",)), 2, data=data)
    assert made.order.env[STAGED] == "s3://bucket/d/x"
    assert plan(TrainConfig(), 2, data=DataConfig(url="s3://bucket/d/"), program=INDEXED).reading.mode == "stage"
    messages = plan(TrainConfig(max_duration="2h"), 2, access=dataclasses.replace(NO_ACCESS, left_s=60.0)).warnings
    assert [line for line in messages if 'set [provision] instance_profile = "auto"' in line]


DATA = DataConfig(url="s3://data/digits/", results="s3://results/models")


def test_without_other_urls_a_job_may_use_what_data_names() -> None:
    assert find_scope(TrainConfig(args=("--lr", "0.1")), DATA) == S3Scope(data_url=DATA.url, results_url=DATA.results)
    assert find_scope(TrainConfig(), DataConfig()).is_empty


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--data-train", "s3://more/train.rec"], ["s3://more/train."]),  # and train.idx
        (["--data-train=s3://more/a.rec;s3://more/b.rec"], ["s3://more/a.", "s3://more/b."]),
        (["sh", "-c", "train --data 's3://more/it is/' && ls \"s3://other/b/\""], ["s3://more/it", "s3://other/b/"]),
        (["s3://more/a/", "s3://more/a/b", "s3://more/a"], ["s3://more/a"]),  # a prefix of the others
        (["s3://more/run-$N/", "s3://$BUCKET/a", "s3://more/x*?"], ["s3://more/run-", "s3://more/x"]),
        (["s3://data/digits/train/", "s3://data/digits", "s3://results/models/old"], []),  # already in [data]
        (["s3://data/digits-2/"], ["s3://data/digits-2/"]),
        (["s3://more.rec"], ["s3://more.rec/"]),
    ],
)
def test_a_job_may_read_the_urls_in_its_arguments(words: list[str], found: list[str]) -> None:
    assert list(find_scope(TrainConfig(args=tuple(words)), DATA).also_read) == found
    assert list(find_scope(TrainConfig(args=("s3://not/run",)), DATA, command=words).also_read) == found


def test_a_job_may_read_the_urls_in_its_variables_and_setup() -> None:
    config = TrainConfig(
        env={"A": "s3://of-all/a"},
        env_worker={"B": "x s3://of-workers/b y"},
        env_server={"C": "s3://of-servers/c"},
        setup=("aws s3 cp s3://of-setup/d .",),
    )
    scope = find_scope(config, DATA)
    assert scope.also_read == ("s3://of-setup/d",)
    assert scope.read_secretly == ("s3://of-all/a", "s3://of-servers/c", "s3://of-workers/b")
    assert not scope.is_empty


@pytest.mark.parametrize(
    "words",
    [
        ("--model-prefix", "s3://saved/net"),
        ("--model-prefix=s3://saved/net",),
        ("sh", "-c", "python train.py --model_prefix 's3://saved/net' --lr 1"),
    ],
)
def test_a_job_may_write_at_its_model_prefix(words: tuple[str, ...]) -> None:
    scope = find_scope(TrainConfig(args=words), DATA)
    assert (scope.also_written, scope.also_read) == (("s3://saved/net",), ())
    assert find_scope(TrainConfig(args=("--model-prefix", "s3://results/models/net")), DATA).also_written == ()


SECRETS = {"AWS_ACCESS_KEY_ID": "a"}
SCOPE = S3Scope(data_url="s3://a/b/", results_url="s3://c/", also_read=("s3://d/e",))


@pytest.mark.parametrize(
    ("access", "scope", "message"),
    [
        (S3Access(env={}, secrets=SECRETS, left_s=129598), SCOPE, "for 36 h, to read s3://a/b/, s3://d/e and write"),
        (S3Access(env={}, secrets=SECRETS, left_s=3600, warning="x"), SCOPE, "credentials: yours for 1 h, not limited"),
    ],
)
def test_credentials_are_shown_before_the_start(access: S3Access, scope: S3Scope, message: str) -> None:
    assert message in render_access(access, scope)
