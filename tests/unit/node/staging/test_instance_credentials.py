"""The supervisor's credentials from the instance metadata service, with a small service on this machine."""

import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from job_channels import make_order
from node import instance_credentials
from node.staging import s3
from node.supervisor.supervisor import take_credentials
from s3_server import REGION, serve_s3_alone

KEYS = {"AccessKeyId": "ASIA1", "SecretAccessKey": "s", "Token": "t", "Expiration": "2000-01-01T00:00:00Z"}
KEYS_END = datetime(2000, 1, 1, tzinfo=UTC)
ROLES = instance_credentials.ROLES


class Metadata:
    """Answers like IMDSv2. pages: path -> body; status: the status of the answer to a PUT, whose body is `token`."""

    def __init__(self) -> None:
        self.pages: dict[str, str] = {}
        self.status = 200
        self.token = "token-1"
        self.asked: list[tuple[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                outer.asked.append(("PUT", self.path))
                self.reply(outer.status, outer.token)

            def do_GET(self) -> None:
                outer.asked.append(("GET", self.path))
                if self.headers["X-aws-ec2-metadata-token"] != outer.token:
                    self.reply(401, "")
                else:
                    self.reply(200 if self.path in outer.pages else 404, outer.pages.get(self.path, ""))

            def reply(self, status: int, body: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def give(self, **changed: Any) -> None:
        self.pages = {ROLES: "trainers", f"{ROLES}trainers": json.dumps({"Code": "Success", **KEYS, **changed})}


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[Metadata]:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # the program must ignore it
    monkeypatch.setattr(instance_credentials, "PATIENCE_S", 0.0)
    monkeypatch.setattr(instance_credentials, "PAUSE_S", 0.01)
    made = Metadata()
    monkeypatch.setattr(instance_credentials.wait_for, "__defaults__", (made.address,))
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_a_job_gets_the_instances_keys(metadata: Metadata) -> None:
    metadata.give()
    job = make_order(nodes_credentials=True, secrets={"AWS_PROFILE": "old"})
    assert len(take_credentials(job)) == 1
    assert job.secrets == {"AWS_ACCESS_KEY_ID": "ASIA1", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t"}
    assert [method for method, _ in metadata.asked] == ["PUT", "GET"] * 2


def test_a_job_that_stages_gets_no_warning(metadata: Metadata) -> None:
    metadata.give()
    job = make_order(nodes_credentials=True, env={"CLUSTER_DATA_MODE": "stage"})
    assert take_credentials(job) == []
    assert job.secrets["AWS_ACCESS_KEY_ID"] == "ASIA1"


def test_a_job_with_its_own_keys_asks_nobody(metadata: Metadata) -> None:
    job = make_order(secrets={"AWS_ACCESS_KEY_ID": "ASIA2"})
    assert take_credentials(job) == []
    assert job.secrets == {"AWS_ACCESS_KEY_ID": "ASIA2"}
    assert not metadata.asked


def test_an_instance_without_a_profile_says_what_to_do(metadata: Metadata) -> None:
    with pytest.raises(instance_credentials.CredentialsError, match="launched without the instance profile") as caught:
        instance_credentials.wait_for()
    assert "cluster up" in str(caught.value)


def test_waits_for_late_credentials(metadata: Metadata, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_credentials, "PATIENCE_S", 60.0)

    def give_when_asked_twice() -> None:
        deadline = time.monotonic() + 30
        while metadata.asked.count(("GET", ROLES)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        metadata.give()

    giving = threading.Thread(target=give_when_asked_twice, daemon=True)
    giving.start()
    assert instance_credentials.wait_for().access_key_id == "ASIA1"
    giving.join()
    assert metadata.asked.count(("GET", ROLES)) > 2


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"Code": "AssumeRoleUnauthorizedAccess", "Message": "EC2 cannot assume the role"}, "cannot assume the role"),
        ({"Code": "Failed"}, "role trainers: Failed"),
    ],
)
def test_a_role_that_ec2_cannot_assume_is_named(metadata: Metadata, changed: dict[str, str], said: str) -> None:
    metadata.give(**changed)
    with pytest.raises(instance_credentials.CredentialsError, match=said):
        instance_credentials.wait_for()


def test_the_service_is_disabled_or_missing(metadata: Metadata) -> None:
    metadata.status = 403
    with pytest.raises(instance_credentials.CredentialsError, match="refuses to give credentials: 403"):
        instance_credentials.wait_for()
    with pytest.raises(instance_credentials.CredentialsError, match="gives no credentials"):
        instance_credentials.wait_for("127.0.0.1:9")


def test_an_invalid_answer_is_not_shown(metadata: Metadata) -> None:
    metadata.pages = {ROLES: "trainers", f"{ROLES}trainers": 'SECRET{"Code"'}
    with pytest.raises(instance_credentials.CredentialsError, match="gives no credentials") as caught:
        instance_credentials.wait_for()
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (timedelta(hours=6), None),
        (timedelta(hours=5, minutes=59), "expire in 5 h 59 min, at 2000-01-01T00:00:00Z"),
        (timedelta(minutes=10), "expire in 0 h 10 min"),
    ],
)
def test_render_expiry(left: timedelta, said: str | None) -> None:
    lines = instance_credentials.render_expiry(KEYS_END, KEYS_END - left)
    assert lines == [] if said is None else said in lines[0]


def end_in(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))


def test_obstore_gets_the_expiration(metadata: Metadata) -> None:
    metadata.give(Expiration="2026-01-02T03:04:05Z")
    assert s3.InstanceKeys(metadata.address)() == {
        "access_key_id": "ASIA1",
        "secret_access_key": "s",
        "token": "t",
        "expires_at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    }


def test_expiring_keys_are_renewed(metadata: Metadata, monkeypatch: pytest.MonkeyPatch) -> None:
    """obstore asks for new keys five minutes before the old ones expire."""
    monkeypatch.delenv("http_proxy")
    with serve_s3_alone() as server:
        server.put("models", {})
        env = {"AWS_ENDPOINT_URL": server.url, "S3_REGION": REGION}
        metadata.give(Expiration=end_in(200))
        store = s3.Store(env, find_keys=s3.InstanceKeys(metadata.address))
        store.put_file(__file__, "s3://models/1")
        asked = len(metadata.asked)
        time.sleep(0.15)  # obstore does not ask again earlier
        metadata.give(Expiration=end_in(3600))
        store.put_file(__file__, "s3://models/1")
        assert len(metadata.asked) == 2 * asked
        time.sleep(0.15)
        store.put_file(__file__, "s3://models/1")
        assert len(metadata.asked) == 2 * asked


def test_valid_keys_are_kept_without_new_ones(metadata: Metadata) -> None:
    keys = s3.InstanceKeys(metadata.address)
    with pytest.raises(instance_credentials.CredentialsError):
        keys()
    metadata.give(Expiration=end_in(3600))
    first = keys()
    metadata.pages = {}
    assert keys() == first
    metadata.give(Expiration=end_in(-1))
    keys()
    metadata.pages = {}
    with pytest.raises(instance_credentials.CredentialsError):
        keys()
