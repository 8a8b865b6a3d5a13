"""The supervisor's credentials from the instance metadata service, with a small service on this machine."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from http_server import serve_metadata
from job_channels import make_order
from node import instance_credentials
from node.staging import s3
from node.supervisor.launching import take_credentials
from s3_server import REGION, serve_s3_alone

KEYS = {"AccessKeyId": "ASIA1", "SecretAccessKey": "s", "Token": "t", "Expiration": "2000-01-01T00:00:00Z"}
ROLES = instance_credentials.ROLES


class Metadata:
    """Answers like IMDSv2. pages: path -> body; status: the status of the answer to a PUT."""

    def __init__(self) -> None:
        self.pages: dict[str, str] = {}
        self.status = 200
        self.asked: list[tuple[str, str]] = []
        self.address = ""

    def answer(self, method: str, path: str, token: str | None) -> tuple[int, str]:
        self.asked.append((method, path))
        if method == "PUT":
            return self.status, "token-1"
        if token != "token-1":
            return 401, ""
        return 200 if path in self.pages else 404, self.pages.get(path, "")

    def give(self, **changed: Any) -> None:
        self.pages = {ROLES: "trainers", f"{ROLES}trainers": json.dumps({"Code": "Success", **KEYS, **changed})}


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[Metadata]:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # the program must ignore it
    monkeypatch.setattr(instance_credentials, "PATIENCE_S", 0.0)
    monkeypatch.setattr(instance_credentials, "PAUSE_S", 0.01)
    made = Metadata()
    with serve_metadata(made.answer) as url:
        made.address = url.partition("://")[2]
        monkeypatch.setattr(instance_credentials.wait_for, "__defaults__", (made.address,))
        yield made


def test_a_job_gets_the_instances_keys(metadata: Metadata) -> None:
    metadata.give()
    job = make_order(nodes_credentials=True, secrets={"AWS_PROFILE": "old"})
    take_credentials(job)
    assert job.secrets == {"AWS_ACCESS_KEY_ID": "ASIA1", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t"}
    assert [method for method, _ in metadata.asked] == ["PUT", "GET"] * 2


def test_an_instance_without_a_profile_says_what_to_do(metadata: Metadata) -> None:
    with pytest.raises(instance_credentials.CredentialsError, match="launched without the instance profile") as caught:
        instance_credentials.wait_for()
    assert "cluster up" in str(caught.value)


def test_waits_for_late_credentials(metadata: Metadata, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_credentials, "PATIENCE_S", 60.0)

    answer = metadata.answer

    def answer_late(method: str, path: str, token: str | None) -> tuple[int, str]:
        if metadata.asked.count(("GET", ROLES)) == 2:
            metadata.give()
        return answer(method, path, token)

    with serve_metadata(answer_late) as url:
        assert instance_credentials.wait_for(url.partition("://")[2]).access_key_id == "ASIA1"
    assert metadata.asked.count(("GET", ROLES)) == 3


def test_a_role_that_ec2_cannot_assume_is_named(metadata: Metadata) -> None:
    metadata.give(Code="AssumeRoleUnauthorizedAccess", Message="EC2 cannot assume the role")
    with pytest.raises(instance_credentials.CredentialsError, match="cannot assume the role"):
        instance_credentials.wait_for()


def test_the_service_is_disabled_or_missing(metadata: Metadata) -> None:
    metadata.status = 403
    with pytest.raises(instance_credentials.CredentialsError, match="refuses to give credentials: 403"):
        instance_credentials.wait_for()
    with pytest.raises(instance_credentials.CredentialsError, match="gives no credentials"):
        instance_credentials.wait_for("127.0.0.1:9")


def end_in(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))


def test_expiring_keys_are_renewed(metadata: Metadata, monkeypatch: pytest.MonkeyPatch) -> None:
    """obstore asks for new keys five minutes before the old ones expire."""
    monkeypatch.delenv("http_proxy")
    with serve_s3_alone() as server:
        server.put("models", {})
        env = {"AWS_ENDPOINT_URL": server.url, "S3_REGION": REGION, "CLUSTER_DATA_CREDENTIALS": "instance"}
        metadata.give(Expiration=end_in(200))
        store = s3.Store(env)
        store.put_file(__file__, "s3://models/1")
        asked = len(metadata.asked)
        time.sleep(0.15)  # obstore does not ask again earlier
        metadata.give(Expiration=end_in(3600))
        store.put_file(__file__, "s3://models/1")
        assert len(metadata.asked) == 2 * asked
        time.sleep(0.15)
        store.put_file(__file__, "s3://models/1")
        assert len(metadata.asked) == 2 * asked
