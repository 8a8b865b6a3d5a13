"""Errors and warnings about a job before it starts."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from bootstrap.apply import ReadyNode
from foundation.errors import ConfigError
from job_world import OWN_SCRIPT, cpus, gpus, plan, with_files
from train.job.checks import Problem, find_data_problems
from train.job.config import DataConfig, TrainConfig
from train.job.survey import Data, Survey

COMMAND: dict[str, Any] = {"command": ("python", "x.py")}
OWN = {"script": OWN_SCRIPT}


MISSING, EMPTY = Data(exists=False), Data(is_empty=True)


def seen(data: Data | None, *, mode: str = "auto", **more: Any) -> dict[str, Any]:
    config = DataConfig(url="s3://bucket/x/", mode=mode)  # type: ignore[arg-type]
    return {"data": config, "survey": Survey(data=data), **more}


WITHOUT_CUDA = [replace(one, library="mxnet==1.9.1") for one in gpus(1, 1)]


@pytest.mark.parametrize(
    ("keys", "nodes", "more", "message"),
    [
        # A single worker has no other to exchange gradients with. The number of workers counts, not that of nodes.
        ({}, cpus(1), {}, 'kv_store = "dist_sync" needs two or more workers'),
        ({}, cpus(1), COMMAND, None),
        # Several workers, each with its own store.
        ({"kv_store": "local"}, cpus(2), {}, "would train 2 separate models"),
        # Gradient compression and P3.
        ({"p3": True}, cpus(2), {}, None),
        ({"p3": True, "kv_store": "dist_async"}, cpus(2), {}, "p3 = true needs kv_store"),
        ({"p3": True, "gc_type": "2bit"}, cpus(2), {}, "does not support gradient compression"),
        # Options among the script's own arguments. The options that are appended to them take precedence.
        ({"args": ("--kv-store", "dist_async")}, cpus(2), {}, "train.kv_store adds --kv-store dist_sync"),
        ({"args": ("--kv-store=local",)}, with_files(cpus(2)), OWN, "train.args: --kv-store local has no effect: "),
        ({"args": ("--store", "x"), "kv_store_option": "--store"}, with_files(cpus(2)), OWN, "adds --store dist_sync"),
        ({"args": ("--kvstore", "device"), "kv_store_option": ""}, with_files(cpus(2)), OWN, None),
        ({"args": ("--kv-store=x", "--kv-store", "dist_sync")}, cpus(2), {}, None),  # the appended option is the same
        ({"args": ("--kv-store", "local")}, cpus(2), COMMAND, None),
        ({"args": ("--gc-type", "none"), "gc_type": "2bit"}, cpus(2), {}, "train.gc_type adds --gc-type 2bit"),
        ({"args": ("--gc-threshold", "1", "--gc-type", "2bit")}, cpus(2), {}, None),  # no option is appended
        # Hosts.
        ({"hosts": ("10.0.0.5", "10.0.0.4:22")}, cpus(2), {}, None),
        ({"hosts": ("node-0", "node-7")}, cpus(2), {}, '"node-7" is not a node of this cluster; did you mean'),
        ({"hosts": ("node-0:2222",)}, cpus(2), {}, "port 22"),
        # GPUs.
        ({"workers": 6}, gpus(4, 4), {}, "the 4 GPUs of node-0 cannot be shared equally among its 3 workers"),
        ({"workers": 4, "gpus": "none"}, gpus(1, 1), {}, None),
        ({"gpus": (0, 3)}, gpus(4, 2), {}, r"gpus = [0, 3]: node-1 has 2"),
        ({"gpus": (0,)}, cpus(2), {}, "node-0 has none, node-1 has none"),
        ({"gpus": (0,)}, WITHOUT_CUDA, {}, "mxnet==1.9.1 has no GPU support"),
        ({}, gpus(1, 0), {}, "node-1 has no GPU, but other nodes have"),
        ({"hosts": ("node-1", "node-2")}, gpus(0, 1, 1), {}, None),
        # Files and variables.
        ({"env": {"DMLC_ROLE": "worker"}}, cpus(2), {}, "train.env: DMLC_ROLE is reserved"),
        # Data.
        ({}, cpus(2), seen(EMPTY), "there is nothing to read"),
        ({}, cpus(2), seen(EMPTY, **COMMAND), None),
        ({"args": ("--data-train", "x.rec")}, cpus(2), seen(EMPTY), None),
        # What the user's own program saves would be lost, too.
        ({}, cpus(2), {"survey": Survey(results=MISSING), **COMMAND}, "data.results = "),
        ({}, cpus(2), {"survey": Survey(results=EMPTY), **COMMAND}, None),
        # The nodes use another S3 than this machine.
        ({"env": {"AWS_ENDPOINT_URL": "http://x"}}, cpus(2), {"survey": Survey(results=MISSING), **COMMAND}, None),
    ],
)
def test_invalid_jobs_are_refused(
    keys: dict[str, Any], nodes: Sequence[ReadyNode], more: dict[str, Any], message: str | None
) -> None:
    if message is None:
        plan(TrainConfig(**keys), nodes, **more)
        return
    with pytest.raises(ConfigError) as raised:
        plan(TrainConfig(**keys), nodes, **more)
    assert message in raised.value.message
    assert raised.value.exit_code == 2


def test_all_errors_are_reported_at_once() -> None:
    config = TrainConfig(p3=True, gc_type="2bit", kv_store="local", env={"DMLC_ROLE": "x"})
    with pytest.raises(ConfigError) as raised:
        plan(config, 2)
    assert len(raised.value.message.splitlines()) == 4


@pytest.mark.parametrize(
    ("keys", "nodes", "more", "messages"),
    [
        ({}, cpus(2), {}, []),
        ({}, WITHOUT_CUDA, {}, ["mxnet==1.9.1 has no GPU support"]),
        ({"gc_type": "2bit", "gpus": (0,)}, gpus(1, 1), COMMAND, ["train.gc_type and train.gpus not passed on"]),
        # An error for this project's scripts is a warning for others, because it is unknown what they read.
        ({}, cpus(2), seen(MISSING, **COMMAND), ["there is no such bucket (cluster data put --create-bucket FOLDER"]),
        ({"args": ("--data-train", "x.rec")}, cpus(2), seen(MISSING), []),
        # Checkpoints that are lost with a node, in a job that should continue on a new node.
        ({"args": ("--model-prefix", "auto")}, cpus(2), {}, ["one node, since [data] results is not set"]),
        ({"args": ("--model-prefix", "auto")}, cpus(2), {"data": DataConfig(results="s3://bucket/r/")}, []),
        ({"args": ("--model-prefix", "auto"), "on_node_loss": "fail"}, cpus(2), {}, []),
        ({"args": ("--model-prefix", "/shared/m")}, cpus(2), {"volumes": ["/shared"]}, []),
        ({"args": ("--model-prefix", "/shared2/m")}, cpus(2), {"volumes": ["/shared"]}, ["again from epoch 0"]),
        ({"args": ("--model-prefix", "s3://bucket/m")}, cpus(2), {}, []),
        ({"args": ("--model-prefix", "m"), "kv_store": "local"}, cpus(1), {}, []),
    ],
)
def test_likely_mistakes_get_a_warning(
    keys: dict[str, Any], nodes: Sequence[ReadyNode], more: dict[str, Any], messages: list[str]
) -> None:
    warnings = plan(TrainConfig(**keys), nodes, **more).warnings
    assert len(warnings) == len(messages), warnings
    for warning, words in zip(warnings, messages, strict=True):
        assert words in warning


URL = "s3://bucket/x/"
GOOD = Data(region="eu-west-1")
DENIED = "s3://bucket/x/train/a.rec cannot be read: AccessDenied: not authorized"


def problems(more: dict[str, Any], *, url: str = URL, nodes_credentials: bool = False) -> list[Problem]:
    data = replace(GOOD, **more)
    return list(find_data_problems(data, url, region="eu-west-1", nodes_credentials=nodes_credentials))


@pytest.mark.parametrize(
    ("more", "message", "hint", "certain"),
    [
        ({"exists": False}, "there is no such bucket", "put --create-bucket FOLDER s3://bucket/x/", True),
        ({"region": "us-west-2"}, "is in us-west-2, but the nodes are in eu-west-1", 'region = "us-west-2"', True),
        # Outside AWS, a region may be no more than a name.
        ({"region": "us-west-2", "at_aws": False}, "the bucket is in us-west-2", "cluster data get", False),
        ({"refused": DENIED}, "x/train/a.rec cannot be read: AccessDenied: not", "cluster iam-policy", True),
        ({"is_empty": True}, "there is nothing to read", "cluster data put FOLDER s3://bucket/x/", True),
    ],
)  # fmt: skip
def test_each_problem_says_what_to_do(more: dict[str, Any], message: str, hint: str, *, certain: bool) -> None:
    (problem,) = problems(more)
    assert message in problem.message
    assert hint in problem.hint
    assert problem.certain == certain


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"exists": False}, "there is no such folder"),
        ({"is_empty": True}, "there is nothing to read"),
        ({"region": None}, None),
    ],
)
def test_folders_on_volumes(more: dict[str, Any], message: str | None) -> None:
    found = problems(more, url="/shared/data")
    assert [problem.message for problem in found] == ([f'data.url = "/shared/data": {message}'] if message else [])


def test_a_refusal_to_this_machine_does_not_concern_nodes_with_their_own_credentials() -> None:
    assert not problems({"refused": DENIED}, nodes_credentials=True)
