"""A job's access to S3: endpoint and credentials."""

from pathlib import Path

import boto3
import pytest

from foundation.errors import AwsError, ConfigError
from job_world import plan
from provision.aws.s3_access import S3Access, find_s3_access, s3_environment
from train.job.config import TrainConfig


@pytest.mark.parametrize(
    ("region", "endpoint", "private_ca", "wanted"),
    [
        ("us-east-1", None, False, {"S3_REGION": "us-east-1"}),
        ("eu-west-1", None, False, {"S3_IS_AWS": "0", "S3_ENDPOINT": "s3.eu-west-1.amazonaws.com"}),
        ("cn-north-1", None, False, {"S3_ENDPOINT": "s3.cn-north-1.amazonaws.com.cn"}),
        ("us-east-1", "https://10.0.0.1:4443", True, {"S3_ENDPOINT": "10.0.0.1:4443", "S3_VERIFY_SSL": "0"}),
        ("us-east-1", "https://minio.example/", False, {"S3_ENDPOINT": "minio.example", "S3_IS_AWS": "0"}),
    ],
)
def test_environment_of_mxnets_reader(
    region: str, endpoint: str | None, wanted: dict[str, str], *, private_ca: bool
) -> None:
    env = s3_environment(region=region, endpoint_url=endpoint, private_ca=private_ca)
    assert wanted.items() <= env.items()
    assert ("S3_VERIFY_SSL" in env) is private_ca
    assert ("S3_IS_AWS" in env) is (region != "us-east-1" or endpoint is not None)


@pytest.mark.parametrize("endpoint", ["http://10.0.0.1:80", "10.0.0.1:443", "https://host/path"])
def test_endpoints_that_mxnet_cannot_read_are_errors(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="https"):
        s3_environment(region="us-east-1", endpoint_url=endpoint, private_ca=False)


def find_access(profile: str = "none", policy: str | None = "{}") -> S3Access:
    return find_s3_access(region="us-east-1", instance_profile=profile, cluster="demo", policy=policy)


def test_a_job_gets_temporary_keys_of_a_long_lived_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from moto import mock_aws  # noqa: PLC0415 - slow to import, and used by these tests only

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


def test_the_certificates_of_a_private_endpoint_go_to_the_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They are for the endpoint: AWS's own certificates need none."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    assert find_access(policy=None).authorities is None
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://10.0.0.1:4443")
    with pytest.raises(ConfigError, match="AWS_CA_BUNDLE"):
        find_access(policy=None)
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----")
    for access in (find_access(policy=None), find_access("auto")):
        assert access.authorities == "-----BEGIN CERTIFICATE-----"
        assert plan(TrainConfig(), 2, access=access).order.authorities == access.authorities


def test_the_endpoint_of_a_profile_counts_for_jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As for `cluster data put`; a variable precedes it."""
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----")
    config = tmp_path / "config"
    config.write_text(
        f"[profile store]\nservices = ours\nca_bundle = {tmp_path}/ca.pem\n"
        "[services ours]\ns3 =\n  endpoint_url = https://minio.example\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "store")
    for name in ("AWS_ENDPOINT_URL", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    access = find_access("auto")
    assert (access.env["AWS_ENDPOINT_URL"], access.env["S3_VERIFY_SSL"]) == ("https://minio.example", "0")
    assert access.authorities == "-----BEGIN CERTIFICATE-----"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://10.0.0.1:4443")
    assert find_access("auto").env["AWS_ENDPOINT_URL"] == "https://10.0.0.1:4443"
    monkeypatch.setenv("AWS_PROFILE", "none")
    with pytest.raises(AwsError, match="none"):
        find_access("auto")


def test_a_job_that_needs_nothing_of_s3_gets_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boto3, "Session", None)  # the source of credentials and of calls to STS
    assert find_access(policy=None).secrets == {}


@pytest.mark.parametrize("profile", ["auto", "trainers"])
def test_an_instance_profile_needs_no_keys_here(profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boto3, "Session", None)  # the source of credentials and of calls to STS
    access = find_access(profile)
    assert access.of_nodes
    assert not access.secrets
    assert access.env["S3_REGION"] == "us-east-1"
    assert plan(TrainConfig(), 2, access=access).order.spec.nodes_credentials
