"""The credentials of a job: those in a worker's environment, and the policy that AWS would limit them by."""

import dataclasses
import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ec2_client import client
from ec2_sandbox import control
from iam_calls import find_denied
from iam_steps import ACCOUNT, TRUST, client_of
from job_steps import borrowed, cause, ec2_of
from project import Project, processes_of
from provision.aws.iam_policy import S3Scope, render_job_policy
from provision.aws.s3_access import S3Access, find_s3_access
from sandbox_steps import RunningSandbox
from waits import until

pytestmark = pytest.mark.sandbox

WAITS = ("--", "sh", "-c", "echo begun; sleep 600")


@pytest.fixture
def cluster(two_nodes: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """The shared cluster, with data and results of this test's own, and boto3 pointed at its sandbox."""
    ec2_of(two_nodes, monkeypatch)
    s3 = client("s3", s3={"addressing_style": "path"})
    for bucket in ("scoped", "elsewhere"):
        s3.create_bucket(Bucket=bucket)
    for bucket, key in (("scoped", "data/a"), ("scoped", "beside"), ("elsewhere", "secret"), ("elsewhere", "new/a")):
        s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    with two_nodes.configured(url="s3://scoped/data/", results="s3://scoped/results/"), borrowed(two_nodes):
        yield two_nodes


def keys_of_a_worker(project: Project, *words: str) -> tuple[dict[str, Any], str]:
    """The credentials in the environment of a job's worker, and the messages before it began."""
    with project.following("train", "-v", "-n", "1", "--kv-store", "local", *words, *WAITS) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "begun" in line, line + project.messages.read_text()
        output = project.messages.read_text()
        (job,) = re.findall(r"^job (\S+): 1 worker", output, re.MULTILINE)
        env = next(env for env in processes_of(job).values() if "AWS_SECRET_ACCESS_KEY" in env)
    names = {"AccessKeyId": "AWS_ACCESS_KEY_ID", "SecretAccessKey": "AWS_SECRET_ACCESS_KEY"}
    return {key: env[name] for key, name in {**names, "SessionToken": "AWS_SESSION_TOKEN"}.items()}, output


def read_log(project_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in control.api_log(project_dir).read_text().splitlines()]


def policy_of(project_dir: Path) -> str:
    """The policy of the newest session that was limited."""
    calls = [call for call in read_log(project_dir) if "Policy" in call["parameters"]]
    return str(calls[-1]["parameters"]["Policy"])


def test_a_jobs_credentials_read_its_data_and_write_its_results(cluster: Project) -> None:
    """The operator needs no other policy than the one that `cluster iam-policy` prints."""
    before = len(read_log(cluster.directory))  # other tests have used this sandbox
    keys, output = keys_of_a_worker(cluster, "-v")
    assert client_of("sts", keys).get_caller_identity()["Arn"].endswith(":federated-user/cluster-demo")
    assert "!! this job's credentials" not in output
    assert "read s3://scoped/data/ and write s3://scoped/results/" in output
    s3 = client_of("s3", keys)
    assert s3.get_object(Bucket="scoped", Key="data/a")["Body"].read() == b"x"
    assert s3.list_objects_v2(Bucket="scoped", Prefix="data/")["KeyCount"] == 1
    s3.put_object(Bucket="scoped", Key="results/model", Body=b"weights")
    upload = s3.create_multipart_upload(Bucket="scoped", Key="results/large")["UploadId"]
    part = s3.upload_part(Bucket="scoped", Key="results/large", UploadId=upload, PartNumber=1, Body=b"x")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    s3.complete_multipart_upload(Bucket="scoped", Key="results/large", UploadId=upload, MultipartUpload=parts)
    (job,) = re.findall(r"^job (\S+): 1 worker", output, re.MULTILINE)
    cluster.run("stop", job)
    # The supervisor's own copy of the record and the log is written with these credentials, too.
    until(lambda: exists(f"results/{job}/record.json"), "the record is not in S3")
    calls = read_log(cluster.directory)[before:]
    by_job = [call for call in calls if ":federated-user/" in (call["caller"] or "")]
    assert f"scoped/results/{job}/record.json" in {call["resource"] for call in by_job}
    assert not find_denied(by_job, policy_of(cluster.directory))
    limits = [call for call in calls if call["action"] == "GetFederationToken"]
    assert not find_denied(limits, cluster.run("iam-policy").stdout)


def exists(key: str) -> bool:
    s3 = client("s3", s3={"addressing_style": "path"})
    return bool(s3.list_objects_v2(Bucket="scoped", Prefix=key)["KeyCount"])


def test_what_a_jobs_words_and_variables_name_may_be_read(cluster: Project) -> None:
    project = dataclasses.replace(cluster, env={**cluster.env, "MORE": "s3://elsewhere/new/"})
    keys, message = keys_of_a_worker(project, "--env", "MORE")
    s3 = client_of("s3", keys)
    assert s3.get_object(Bucket="elsewhere", Key="new/a")["Body"].read() == b"x"
    policy = policy_of(cluster.directory)
    tried = [("GetObject", "elsewhere/new/a"), ("PutObject", "elsewhere/new/a"), ("GetObject", "elsewhere/secret")]
    common = {"service": "s3", "region": "us-east-1", "parameters": {}}
    calls = [{**common, "action": action, "resource": resource} for action, resource in tried]
    assert [bool(find_denied([call], policy)) for call in calls] == [False, True, True]
    assert "s3://elsewhere" not in message  # it may be a secret


def test_without_the_permission_to_limit_them_the_user_is_warned_before_the_start(cluster: Project) -> None:
    cause(cluster, "unauthorized", "service=sts", "action=GetFederationToken")
    try:
        keys, messages = keys_of_a_worker(cluster)
    finally:
        control.disarm_faults(cluster.directory, "all")
    assert client_of("sts", keys).get_caller_identity()["Arn"].endswith(":user/operator")
    (warning,) = [
        line for line in messages.splitlines() if line.startswith("!! this job's credentials are not limited")
    ]
    assert "may do all that arn:aws:iam::123456789012:user/operator may" in warning
    assert 'instance_profile = "auto"' in warning


# --- roles: credentials are requested as `cluster train` does it, without a job


POLICY = render_job_policy(S3Scope(data_url="s3://records/digits/"), region="us-east-1")


def find_access(max_duration_s: int | None = None) -> S3Access:
    return find_s3_access(
        region="us-east-1", instance_profile="none", cluster="demo", policy=POLICY, max_duration_s=max_duration_s
    )


def is_limited(access: S3Access, sandbox: RunningSandbox) -> bool:
    """Whether its credentials, which must work, are of a session with this policy."""
    names = {"AccessKeyId": "ACCESS_KEY_ID", "SecretAccessKey": "SECRET_ACCESS_KEY", "SessionToken": "SESSION_TOKEN"}
    s3 = client_of("s3", {key: access.secrets[f"AWS_{name}"] for key, name in names.items()})
    s3.list_objects_v2(Bucket="records", Prefix="digits/")
    opened = [call for call in read_log(sandbox.project_dir) if call["action"] in ("AssumeRole", "GetFederationToken")]
    last = [call for call in opened if call["status"] == 200][-1]
    return bool(last["parameters"].get("Policy") == POLICY)


@pytest.fixture
def env(phantom: RunningSandbox) -> Iterator[pytest.MonkeyPatch]:
    """A patch of the environment for a test. The bucket `records` exists."""
    client("s3", s3={"addressing_style": "path"}).create_bucket(Bucket="records")
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def use(env: pytest.MonkeyPatch, keys: Mapping[str, Any]) -> None:
    """Sets these keys in the environment, as after `aws sts assume-role` by hand."""
    env.setenv("AWS_ACCESS_KEY_ID", keys["AccessKeyId"])
    env.setenv("AWS_SECRET_ACCESS_KEY", keys["SecretAccessKey"])
    env.setenv("AWS_SESSION_TOKEN", keys["SessionToken"])


def make_role(trusts: str, **more: Any) -> str:
    iam, name = client("iam"), f"role-{uuid.uuid4().hex[:8]}"
    arn: str = iam.create_role(RoleName=name, AssumeRolePolicyDocument=trusts, **more)["Role"]["Arn"]
    return arn


def use_profile(env: pytest.MonkeyPatch, directory: Path, text: str) -> None:
    """Uses a configuration file, and no keys in the environment. Its [profile mine] has the operator's keys."""
    keys = "".join(f"{name.lower()} = {os.environ[name]}\n" for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
    (directory / "config").write_text(f"[profile mine]\n{keys}\n{text}")
    env.setenv("AWS_CONFIG_FILE", str(directory / "config"))
    env.setenv("AWS_PROFILE", "trainer")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        env.delenv(name, raising=False)


@pytest.mark.parametrize("times", [(12 * 3600, None, 12), (12 * 3600, 3600, 2), (3600, None, 1)])
def test_the_role_of_a_profile_is_assumed_with_fewer_rights(
    phantom: RunningSandbox, env: pytest.MonkeyPatch, tmp_path: Path, times: tuple[int, int | None, int]
) -> None:
    """The session lasts as long as the job needs, up to the role's limit."""
    longest_s, job_s, hours = times
    arn = make_role(TRUST, MaxSessionDuration=longest_s)
    use_profile(env, tmp_path, f"[profile trainer]\nrole_arn = {arn}\nsource_profile = mine\n")
    access = find_access(job_s)
    assert access.warning is None
    assert is_limited(access, phantom)
    assert access.left_s is not None
    assert round(access.left_s / 3600) == hours


def test_a_role_that_may_not_assume_itself(phantom: RunningSandbox, env: pytest.MonkeyPatch) -> None:
    arn = make_role(TRUST)
    name = arn.rpartition("/")[2]
    use(env, client("sts").assume_role(RoleArn=arn, RoleSessionName="me")["Credentials"])
    control.cause_fault(phantom.project_dir, "unauthorized service=sts action=AssumeRole")
    try:
        access = find_access()
    finally:
        control.disarm_faults(phantom.project_dir, "all")
    assert access.warning is not None
    assert f"may do all that arn:aws:sts::{ACCOUNT}:assumed-role/{name}/me may" in access.warning
    assert not is_limited(access, phantom)

    access = find_access()
    assert access.warning is None
    assert is_limited(access, phantom)
    assert access.left_s is not None
    assert access.left_s <= 3600


def test_the_temporary_keys_of_a_user_are_not_limited_and_the_user_is_warned(env: pytest.MonkeyPatch) -> None:
    keys = client("sts").get_session_token()["Credentials"]
    use(env, keys)
    access = find_access()
    assert access.warning is not None
    assert "credentials are not limited" in access.warning
    assert access.secrets["AWS_SESSION_TOKEN"] == keys["SessionToken"]
