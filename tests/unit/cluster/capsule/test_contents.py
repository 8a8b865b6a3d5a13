"""What differs between a recorded job and the present one, and what is left out of a capsule as a secret."""

import json
import tarfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from cluster.app import App
from cluster.capsule import replay
from cluster.capsule.archive import Ingredients, Manifest
from cluster.capsule.describe import find_tree, scrub, write_capsule
from cluster.capsule.replay import choose_settings, compare, render_rows
from cluster.jobs import JobSources
from foundation.errors import ClusterError
from job_records import make_record
from node.protocol import JobHost, JobSpec, Machine
from node.train_settings import TrainSettings
from train.job.config import TrainConfig

ENVIRONMENT = "a" * 64
SPEC = replace(
    make_record(1).spec,
    train=TrainSettings(script="train.py", args=("--seed", "7"), env={"OMP_NUM_THREADS": "1"}),
    script_source="project",
    python=f"/home/ubuntu/.cluster/env/{ENVIRONMENT}/bin/python",
    library="torch==2.13.0",
    packages=("torch==2.13.0", "nvidia_nccl_cu12==2.21", "mxnet_cluster==0.2.0"),
    project="b" * 64,
    image="docker.io/x@sha256:1",
    env={"CLUSTER_DATA_URL": "s3://b/d/"},
)
MACHINE = Machine(type="g5.xlarge", zone="a", image="ami-1", kernel="6.1", driver="535", gpus=("A10G",))
HOSTS = (JobHost(name="node-0", machine=MACHINE), JobHost(name="node-1", machine=MACHINE))
OTHER_HOSTS = (HOSTS[0], JobHost(name="node-1", machine=replace(MACHINE, type="g6.xlarge")))
RECORDED = Ingredients(spec=SPEC, hosts=HOSTS, program="1", data={"": "s3://b/d/: 1", "a.rec": "3 bytes, ETag x"})


def with_spec(**values: Any) -> Ingredients:
    return replace(RECORDED, spec=replace(SPEC, **values))


@pytest.mark.parametrize(
    ("present", "row"),
    [
        (with_spec(project="c" * 64), ("differs", "files", "b" * 64, "c" * 64)),
        (
            with_spec(python=f"/x/env/{'d' * 64}/bin/python"),
            ("differs", "environment", ENVIRONMENT, "d" * 64),
        ),
        (with_spec(image="docker.io/x@sha256:2"), ("differs", "image", "docker.io/x@sha256:1", "docker.io/x@sha256:2")),
        (with_spec(packages=()), ("missing", "NCCL", "2.21", "-")),
        (with_spec(packages=(*SPEC.packages, "x==1")), ("not recorded", "package x", "-", "1")),
        (
            with_spec(train=replace(SPEC.train, args=("--seed", "8"))),
            ("differs", "command", "train.py --seed 7", "train.py --seed 8"),
        ),
        (with_spec(train=replace(SPEC.train, env={})), ("missing", "variable OMP_NUM_THREADS", "1", "-")),
        (with_spec(train=replace(SPEC.train, p3=True)), ("differs", "[train] p3", "False", "True")),
        (
            replace(RECORDED, hosts=OTHER_HOSTS),
            ("differs", "machine type", "2x g5.xlarge", "1x g5.xlarge, 1x g6.xlarge"),
        ),
        (replace(RECORDED, data={}), ("missing", "data a.rec", "3 bytes, ETag x", "-")),
    ],
)
def test_what_differs_is_named(present: Ingredients, row: tuple[str, ...]) -> None:
    rows = compare(RECORDED, present)
    assert row in rows
    assert {one[0] for one in compare(RECORDED, RECORDED)} == {"same"}
    text = render_rows(rows)
    assert all(cell in text for cell in row)
    assert text.startswith("same: ")


SECRETS = (
    "AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE", "ghp_abcdefghij0123456789", "hf_abcdefghijKLMNOP",
    "xoxb-123456789012", "hunter2hunter2", "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.abcDEF", "sk-abcdefghij0123456789",
    "planted-in-environment",
)  # fmt: skip
TEXTS = (
    *SECRETS[:5],
    "aws_secret_access_key = hunter2hunter2",
    '{"password": "hunter2hunter2"}',
    "--api-key hunter2hunter2",
    "--token=hunter2hunter2",
    "Authorization: Bearer hunter2hunter2",
    "https://me:hunter2hunter2@host/x",
    "https://host/x?X-Amz-Signature=hunter2hunter2&y=1",
    "https://hooks.slack.com/services/hunter2hunter2",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2hunter2\n-----END OPENSSH PRIVATE KEY-----",
    "-----BEGIN RSA PRIVATE KEY-----\nhunter2hunter2",  # cut
    f"says {SECRETS[-1]} aloud",
    *SECRETS[6:8],
)


@pytest.mark.parametrize("text", TEXTS)
def test_secrets_are_left_out(text: str) -> None:
    for value in (text, [text], {"a": {"b": [f"x {text} y"]}}):
        found = json.dumps(scrub(value, ["planted-in-environment"]))
        assert not any(secret in found for secret in SECRETS), found
        assert "***" in found


@pytest.mark.parametrize(
    "text",
    [
        "Epoch[0] Train-loss=1.489825042373",
        "tokens: 4096, tokens/s=1234.5",
        "python train.py --max-tokens 512 --tokenizer bert-base-uncased",
        "s3://bucket/mnist/train.rec", "sha256:" + "ab12" * 16, "20261129-112701-0af8f1",
    ],
)  # fmt: skip
def test_other_text_stays(text: str) -> None:
    assert scrub(text, [], is_public=True) == text


def test_the_word_after_an_option_is_left_out() -> None:
    words = ["train.py", "--api-key", "hunter2hunter2", "--max-tokens", "4096", "--tokenizer", "bert-base"]
    assert scrub(words, []) == [*words[:2], "***", *words[3:]]


def test_a_report_has_neither_values_of_variables_nor_accounts() -> None:
    value = {"env": {"NAME": "quiet"}, "train": {"env_worker": {"A": "1"}}, "arn": "arn:aws:iam::123456789012:user/me"}
    found = scrub(value, [], is_public=True)
    assert found == {"env": {"NAME": "***"}, "train": {"env_worker": {"A": "***"}}, "arn": "arn:aws:iam::***:user/me"}
    assert scrub(value, []) == value
    bucket = "s3://sagemaker-us-east-1-123456789012/a, s3://123456789012-logs/b"
    assert scrub(bucket, [], is_public=True) == "s3://sagemaker-us-east-1-***/a, s3://***-logs/b"


def settings_of(**values: Any) -> dict[str, Any]:
    spec: JobSpec = replace(SPEC, **values)
    return choose_settings(spec, TrainConfig(script="train.py"))


def test_a_replay_has_the_settings_of_the_job() -> None:
    found = settings_of()
    assert (found["bootstrap.packages"], found["bootstrap.torch"]) == (["nvidia_nccl_cu12==2.21"], "torch==2.13.0")
    assert settings_of(packages=("torch==2.7.1+cpu",))["bootstrap.torch"] == "torch==2.7.1"
    assert settings_of(packages=("numpy==2.0",))["bootstrap.torch"] == "auto"  # that of the image
    beside = settings_of(library="mxnet==1.9.1", packages=("mxnet==1.9.1", "torch==2.1.0"))
    assert (beside["bootstrap.packages"], beside["bootstrap.torch"]) == (["torch==2.1.0"], "auto")  # else it is refused
    assert (found["bootstrap.framework"], found["bootstrap.sync"]) == ("pytorch", ["."])
    assert (found["container.image"], found["data.url"]) == ("docker.io/x@sha256:1", "s3://b/d/")
    mxnet = settings_of(library="mxnet-cu112==1.9.1", packages=("mxnet_cu112==1.9.1", "numpy==1.23.5"), project=None)
    assert (mxnet["bootstrap.framework"], mxnet["bootstrap.mxnet"]) == ("mxnet", "mxnet-cu112==1.9.1")
    assert (mxnet["bootstrap.packages"], mxnet["bootstrap.sync"]) == (["numpy==1.23.5"], [])


@pytest.mark.parametrize(
    "package", ["-r /etc/passwd", "x @ file:///etc/passwd", "x==1 --hash=y", "../x.whl", "x==1\n-r y"]
)
def test_a_replay_reads_no_files_of_this_machine(package: str) -> None:
    assert settings_of(packages=(package,))["bootstrap.packages"] == []
    found = settings_of(library="/etc/x.whl", env={}, packages=())
    assert (found["bootstrap.mxnet"], "data.url" in found) == ("auto", False)


SCRIPTS = (("my/train.py", "my/train.py"), ("/etc/passwd", "passwd"), ("../x.py", "x.py"), ("a/../../../etc/x", "x"))


@pytest.mark.parametrize(("script", "sent"), SCRIPTS)
def test_a_replay_sends_no_script_from_outside_the_capsule(script: str, sent: str) -> None:
    assert settings_of(train=replace(SPEC.train, script=script))["train.script"] == sent


@pytest.mark.parametrize(
    ("hosts", "runs_on"),
    [("", ()), ('[train]\nhosts = ["gpu1"]\n', ("gpu1",)), ('[hosts]\nnames = ["gpu1"]\n', ("db",))],
)
def test_a_replay_runs_on_no_hosts_but_those_here(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: str, runs_on: tuple[str, ...]
) -> None:
    """Without [hosts] names, [train] hosts would name the hosts. With them, it is refused if it names another."""
    app.config_path.write_text(f'name = "demo"\ncloud = "hosts"\n{hosts}')
    recorded = with_spec(project=None, image=None, env={}, train=TrainSettings(hosts=("db",)))
    monkeypatch.setattr(replay, "open_capsule", lambda _: nullcontext((recorded, Manifest(), tmp_path)))
    monkeypatch.setattr(replay, "submit", lambda *_, **__: 0)
    replay.replay(app, tmp_path, dry_run=True)
    assert app.config.train.hosts == runs_on


@pytest.mark.parametrize("nodes", [[], [{"name": "node-0"}]])
def test_a_forged_record_makes_no_file_of_this_machine_a_jobs(app: App, tmp_path: Path, nodes: list[Any]) -> None:
    (tmp_path / "cluster.toml").write_text('name = "demo"\n')
    record = make_record(1, project="..", nodes=nodes)
    sources = cast("JobSources", SimpleNamespace(nodes=SimpleNamespace(names=("node-0",))))
    with pytest.raises(ClusterError, match="they have changed here"):
        find_tree(app, record, sources, tmp_path / "new")


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        (None, "no such file"),
        ("name = ", "not valid TOML"),
        (
            'name = "x"\n[train]\nargs = ["--password", "planted1"]\nenv = { A = "planted2", MY_TOKEN = "planted3" }\n',
            "sandbox",
        ),
    ],
)
def test_a_report_needs_neither_a_cluster_nor_a_valid_file(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, missing: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    if text is not None:
        app.config_path.write_text(text)
    write_capsule(app, None, tmp_path / "a.tar.gz", is_report=True)
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        found = "".join(archive.extractfile(one).read().decode() for one in archive)
    assert missing in found
    assert "planted" not in found
    assert '"boto3": "' in found
