"""Deciding what a job is, what it gets of S3, and which files it brings to the nodes."""

from dataclasses import replace
from pathlib import Path

import boto3
import pytest
from msgspec import structs

from foundation.errors import ConfigError
from foundation.progress import silent
from job_world import node, plan
from train.job.config import DataConfig, TrainConfig
from train.job.payload import Payload, collect_trees, shipped_scripts
from train.job.plan import new_job_id
from train.job.protocol import JobHost
from train.s3.environment import S3Access, find_s3_access, s3_environment


@pytest.mark.parametrize(
    ("config", "nodes", "workers", "servers", "threads"),
    [
        (TrainConfig(), 2, 2, 2, "4"),
        (TrainConfig(), 16, 16, 16, "4"),
        (TrainConfig(workers=4, servers=1), 2, 4, 1, "2"),
        (TrainConfig(workers=2), 1, 2, 2, "2"),
        (TrainConfig(workers=8), 2, 8, 8, "1"),
        (TrainConfig(workers=12), 2, 12, 4, "1"),
        (TrainConfig(workers=40), 2, 40, 2, "1"),
        (TrainConfig(workers=3), 2, 3, 3, "2"),
        (TrainConfig(workers=6, launcher="local"), 1, 6, 2, "1"),
        (TrainConfig(workers=10, hosts=("node-1", "node-1", "node-2")), 3, 10, 6, "1"),
        (TrainConfig(kv_store="local", workers=1, servers=1), 2, 1, 0, "8"),
        (TrainConfig(kv_store="device"), 1, 1, 0, "8"),
    ],
)
def test_workers_servers_and_threads(config: TrainConfig, nodes: int, workers: int, servers: int, threads: str) -> None:
    job = plan(config, nodes)
    assert (job.workers, job.servers, job.env["OMP_NUM_THREADS"]) == (workers, servers, threads)
    assert job.hosts[0] == JobHost(name="node-0", ip="10.0.0.4", instance_id="i-0")
    assert len(job.hosts) == (nodes if servers else 1)


def test_the_configured_script_gets_its_arguments_and_the_kv_store() -> None:
    job = plan(TrainConfig(args=("--network", "mlp"), kv_store="dist_async"), 2)
    assert job.command == (
        "/home/ubuntu/.cluster/env/ab/bin/python",
        "/home/ubuntu/.cluster/tree/cd/train/scripts/train_mnist.py",
        *("--network", "mlp", "--kv-store", "dist_async"),
    )


def test_a_command_is_taken_word_for_word() -> None:
    words = ("python", "x.py", "--kv-store", "it's", "$(id)")
    assert plan(TrainConfig(), 2, command=words).command == words


def test_the_users_environment_goes_over_ours() -> None:
    job = plan(
        TrainConfig(env={"OMP_NUM_THREADS": "3", "A": "1"}),
        2,
        env={"A": "0", "B": "2"},
        data=DataConfig(url="s3://bucket/x/"),
    )
    wanted = {"OMP_NUM_THREADS": "3", "A": "1", "B": "2", "CLUSTER_DATA_URL": "s3://bucket/x/"}
    assert {key: job.env[key] for key in wanted} == wanted
    assert "CLUSTER_RESULTS_URL" not in job.env


def test_a_job_is_told_where_its_results_go() -> None:
    job = plan(TrainConfig(), 2, data=DataConfig(results="s3://bucket/y/"))
    assert job.env["CLUSTER_RESULTS_URL"] == "s3://bucket/y/"
    assert "CLUSTER_DATA_URL" not in job.env


@pytest.mark.parametrize(
    ("config", "nodes", "said"),
    [
        (TrainConfig(), 1, "with one worker there is nobody"),
        (TrainConfig(kv_store="local"), 2, "would train 2 models"),
        (TrainConfig(kv_store="device", workers=4), 1, "would train 4 models"),
    ],
)
def test_jobs_that_make_no_sense_are_refused(config: TrainConfig, nodes: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plan(config, nodes)


def test_a_command_of_the_users_own_runs_on_one_node_too() -> None:
    job = plan(TrainConfig(), 1, command=("hostname",))
    assert (job.workers, job.servers) == (1, 1)


def test_a_job_has_no_secrets_of_its_own() -> None:
    job = plan(TrainConfig(), 2)
    assert "hush" not in repr(job)
    order = job.order(secrets={"AWS_SECRET_ACCESS_KEY": "hush"})
    assert order.secrets == {"AWS_SECRET_ACCESS_KEY": "hush"}
    assert "hush" not in repr(structs.replace(order, secrets={}))


def test_job_ids_sort_by_time_and_differ() -> None:
    ids = [new_job_id() for _ in range(50)]
    assert len(set(ids)) == 50


@pytest.mark.parametrize(
    ("region", "endpoint", "private_ca", "wanted"),
    [
        ("us-east-1", None, False, {"S3_REGION": "us-east-1"}),
        ("eu-west-1", None, False, {"S3_IS_AWS": "0", "S3_ENDPOINT": "s3.eu-west-1.amazonaws.com"}),
        ("us-east-1", "https://10.0.0.1:4443", True, {"S3_ENDPOINT": "10.0.0.1:4443", "S3_VERIFY_SSL": "0"}),
        ("us-east-1", "https://minio.example/", False, {"S3_ENDPOINT": "minio.example", "S3_IS_AWS": "0"}),
    ],
)
def test_mxnets_reader_is_told_where_s3_is(
    region: str, endpoint: str | None, wanted: dict[str, str], *, private_ca: bool
) -> None:
    env = s3_environment(region=region, endpoint_url=endpoint, private_ca=private_ca)
    assert wanted.items() <= env.items()
    assert ("S3_VERIFY_SSL" in env) is private_ca
    assert ("S3_IS_AWS" in env) is (region != "us-east-1" or endpoint is not None)


@pytest.mark.parametrize("endpoint", ["http://10.0.0.1:80", "10.0.0.1:443", "https://host/path"])
def test_endpoints_that_mxnet_cannot_read_from_are_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="https"):
        s3_environment(region="us-east-1", endpoint_url=endpoint, private_ca=False)


def find_access(profile: str = "none", policy: str | None = "{}") -> S3Access:
    return find_s3_access(region="us-east-1", instance_profile=profile, cluster="demo", policy=policy)


def test_a_long_lived_key_stays_and_a_temporary_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    from moto import mock_aws  # noqa: PLC0415 - slow to import, and for these tests alone

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIACANARY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "longlivedsecret")
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    with mock_aws():
        access = find_access()
    assert set(access.secrets) == {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}
    assert "longlivedsecret" not in access.secrets.values()
    assert access.secrets["AWS_SECRET_ACCESS_KEY"] not in repr(access)
    assert access.warning is None
    assert access.left_s == pytest.approx(36 * 3600, abs=60)


def test_temporary_credentials_that_cannot_be_limited_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from moto import mock_aws  # noqa: PLC0415 - as above

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ASIA1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "t")
    with mock_aws(config={"core": {"mock_credentials": False}}):
        access = find_access()
    assert not access.of_nodes
    assert access.warning is not None
    assert access.secrets == {
        "AWS_ACCESS_KEY_ID": "ASIA1",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_SESSION_TOKEN": "t",
    }


def test_a_job_that_needs_nothing_of_s3_gets_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boto3, "Session", None)  # where both credentials and calls to STS would come from
    assert find_access(policy=None).secrets == {}


@pytest.mark.parametrize("profile", ["auto", "trainers"])
def test_with_an_instance_profile_the_users_credentials_are_not_even_looked_at(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boto3, "Session", None)  # where both credentials and calls to STS would come from
    access = find_access(profile)
    assert access.of_nodes
    assert not access.secrets
    assert access.env["S3_REGION"] == "us-east-1"
    order = plan(TrainConfig(), 2, nodes_credentials=access.of_nodes).order(secrets=access.secrets)
    assert (order.nodes_credentials, order.secrets) == (True, {})


def test_a_script_that_is_nowhere_is_named(tmp_path: Path) -> None:
    assert "train_mnist.py" in shipped_scripts()
    with pytest.raises(ConfigError, match=r"no-such\.py.*train_mnist\.py"):
        collect("no-such.py", tmp_path)


def test_a_job_runs_in_the_folder_of_the_users_files_where_there_is_one() -> None:
    nodes = [replace(node(index), project_dir="/home/ubuntu/.cluster/tree/ef", setup="ab") for index in range(2)]
    job = plan(TrainConfig(), nodes, script="/x/train.py")
    assert job.cwd == "/home/ubuntu/.cluster/tree/ef"
    assert job.command[1] == "/x/train.py"
    assert job.order(secrets={}).setup == "ab"
    assert plan(TrainConfig(), 2).cwd == "/home/ubuntu/.cluster/tree/cd"


def collect(script: str, project: Path, *sync: str, exclude: tuple[str, ...] = ()) -> Payload:
    return collect_trees(script, sync=sync, exclude=exclude, project_dir=project, report=silent)


@pytest.mark.parametrize(
    ("script", "sync", "path", "is_own", "sent"),
    [
        ("train_mnist.py", (), "train/scripts/train_mnist.py", False, None),
        ("train_mnist.py", ("my/",), "train/scripts/train_mnist.py", False, ["my/net.py", "my/train.py"]),
        ("my/train.py", (), "my/train.py", True, ["my/train.py"]),
        ("./my/../my/train.py", ("my",), "my/train.py", True, ["my/net.py", "my/train.py"]),
        ("../outside.py", ("my/net.py",), "outside.py", True, ["my/net.py", "outside.py"]),
        ("ABSOLUTE/outside.py", (), "outside.py", True, ["outside.py"]),
        ("ABSOLUTE/project/my/train.py", (), "my/train.py", True, ["my/train.py"]),
        ("link.py", (), "link.py", True, ["link.py"]),
    ],
)
def test_the_users_files_lie_where_they_lie_in_the_project(
    tmp_path: Path, script: str, sync: tuple[str, ...], path: str, sent: list[str] | None, *, is_own: bool
) -> None:
    project = make_project(tmp_path)
    payload = collect(script.replace("ABSOLUTE", str(tmp_path)), project, *sync)
    assert (payload.script, payload.is_own) == (path, is_own)
    assert (payload.project and [file.path for file in payload.project.files]) == sent
    assert {"train/node/supervisor/supervise.py", "train/node/role/role.py", "train/scripts/train_mnist.py"} <= {
        f.path for f in payload.code.files
    }


def make_project(folder: Path) -> Path:
    project = folder / "project"
    (project / "my").mkdir(parents=True)
    for path in ("project/my/train.py", "project/my/net.py", "outside.py"):
        (folder / path).write_text(path)
    (project / "link.py").symlink_to(folder / "outside.py")
    return project


def test_the_script_is_sent_whatever_is_excluded(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    payload = collect("my/train.py", project, "my", exclude=("train.py",))
    assert payload.project is not None
    assert [file.path for file in payload.project.files] == ["my/net.py", "my/train.py"]


@pytest.mark.parametrize("taken", ["outside.py", "outside.py/x", "outside.py/"])
def test_two_files_for_the_same_place_are_refused(tmp_path: Path, taken: str) -> None:
    project = make_project(tmp_path)
    (project / taken).parent.mkdir(exist_ok=True)
    (project / taken).mkdir() if taken.endswith("/") else (project / taken).touch()
    with pytest.raises(ConfigError, match=r"sync brings another outside\.py to the same place"):
        collect("../outside.py", project, ".", exclude=("link.py",))


def test_what_did_not_change_is_the_same_tree(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    first, second = (collect("my/train.py", project, ".", exclude=("link.py",)) for _ in range(2))
    assert first.project is not None
    assert second.project is not None
    assert (first.code.digest, first.project.digest) == (second.code.digest, second.project.digest)
