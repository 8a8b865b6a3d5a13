"""put, get and ls with every source of credentials that AWS's tools support, and with keys that expire meanwhile."""

import hashlib
import itertools
import json
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from getpass import getpass
from pathlib import Path

import pytest
from botocore.credentials import AssumeRoleProvider
from botocore.exceptions import ClientError
from msgspec.structs import replace

from folders import read_files, write_files
from foundation.errors import AwsError
from foundation.progress import silent
from http_server import Asked, Refusal, judging_proxy
from provision.aws.clients import make_clients
from provision.describe import describe_cluster
from provision.membership import KnownInstances
from s3_server import REGION, S3Server
from train.s3 import operations as s3
from train.s3 import transfer
from train.s3.connection import find_endpoint
from train.s3.errors import explain
from train.s3.transfer import PART_BYTES

BUCKET = "datasets"
ROLE_ARN = "arn:aws:iam::123456789012:role/trainer"
CONFIG = f"""
[profile process]
credential_process = {{keys}}
[profile no-program]
credential_process = /nowhere/keys
[profile no-json]
credential_process = /bin/echo keys
[profile expired]
credential_process = /bin/cat {{folder}}/expired
[profile role]
role_arn = {ROLE_ARN}
source_profile = base
[profile code]
role_arn = {ROLE_ARN}
source_profile = base
mfa_serial = arn:aws:iam::123456789012:mfa/me
[profile login]
login_session = arn:aws:iam::123456789012:user/me
"""


def at(seconds_from_now: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds_from_now)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture
def server(shared_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server, and a user with the profiles of CONFIG, but without keys in the environment."""
    monkeypatch.setattr("provision.aws.credentials._ROLES", {})
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    folder = tmp_path / ".aws"
    folder.mkdir()
    (folder / "config").write_text(CONFIG.format(keys=write_program(tmp_path), folder=tmp_path))
    expired = {
        "Version": 1,
        "AccessKeyId": "ASIAOLD",
        "SecretAccessKey": "s",
        "SessionToken": "t",
        "Expiration": at(-9),
    }
    (tmp_path / "expired").write_text(json.dumps(expired))
    (folder / "credentials").write_text("[base]\naws_access_key_id = AKIABASE\naws_secret_access_key = s\n")
    login = {"accessKeyId": "ASIALOGIN", "secretAccessKey": "s", "sessionToken": "t", "accountId": "123456789012"}
    token = {"accessToken": {**login, "expiresAt": at(3600)}, "refreshToken": "r", "dpopKey": "k", "clientId": "c"}
    monkeypatch.setenv("AWS_LOGIN_CACHE_DIRECTORY", str(tmp_path))
    name = hashlib.sha256(b"arn:aws:iam::123456789012:user/me").hexdigest()
    (tmp_path / f"{name}.json").write_text(json.dumps(token))
    shared_server.put(BUCKET, {})
    yield shared_server
    shared_server.reset()


def write_program(folder: Path, *, key_id: str = "AKIAPROGRAM") -> Path:
    """Writes a credential_process whose keys expire so soon that it is called each time. key_id: a shell expression."""
    path = folder / "keys"
    keys = {"Version": 1, "AccessKeyId": "KEY_ID", "SecretAccessKey": "s", "SessionToken": "t", "Expiration": at(500)}
    text = json.dumps(keys).replace("KEY_ID", f"'{key_id}'")
    path.write_text(f"#!/bin/sh\nread generation < {folder}/generation\necho '{text}'\n")
    path.chmod(0o755)
    return path


def use(tmp_path: Path, sizes: list[int]) -> None:
    """Copies to S3 and back, with all three clients."""
    files = {f"{number}.rec": os.urandom(size) for number, size in enumerate(sizes)}
    write_files(tmp_path / "local", files)
    url = f"s3://{BUCKET}/d/"
    s3.put([f"{tmp_path / 'local'}/"], url, region=REGION, report=silent)
    assert len(s3.ls(url, region=REGION)) == len(files)
    s3.get([url], str(tmp_path / "back"), region=REGION)
    assert read_files(tmp_path / "back") == files


@pytest.mark.parametrize(
    ("profile", "key_id"),
    [("base", "AKIABASE"), ("process", "AKIAPROGRAM"), ("role", "ASIA"), ("login", "ASIALOGIN")],
)
def test_credentials_of_every_source(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, profile: str, key_id: str
) -> None:
    """botocore finds them, also those of a container and an instance."""
    monkeypatch.setenv("AWS_PROFILE", profile)
    endpoint = find_endpoint(region=REGION)
    assert endpoint.url == server.url
    assert endpoint.credentials()["access_key_id"].startswith(key_id)


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "UNUSED"])
@pytest.mark.parametrize("key_id", ["", "AKIAENV"])
@pytest.mark.usefixtures("server")
def test_authorities_are_those_of_botocore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, key_id: str
) -> None:
    """A proxy may sign with an authority of its own, which the variable or the profile names."""
    bundle, config = tmp_path / "ca.pem", f"[profile base]\nca_bundle = {tmp_path}/ca.pem\n"
    bundle.write_text("-----BEGIN CERTIFICATE-----")
    (tmp_path / ".aws" / "config").write_text(config if variable == "UNUSED" else "")
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    keys = {"AWS_ACCESS_KEY_ID": key_id, "AWS_SECRET_ACCESS_KEY": "s"} if key_id else {}
    for name, value in {**keys, "AWS_PROFILE": "base", variable: str(bundle)}.items():
        monkeypatch.setenv(name, value)
    assert find_endpoint(region=REGION).authorities == "-----BEGIN CERTIFICATE-----"


@pytest.mark.parametrize(
    ("env", "profile", "url"),
    [
        ({}, "", None),
        ({"AWS_USE_FIPS_ENDPOINT": "true"}, "", f"https://s3-fips.{REGION}.amazonaws.com"),
        ({"AWS_USE_DUALSTACK_ENDPOINT": "true"}, "", f"https://s3.dualstack.{REGION}.amazonaws.com"),
        ({}, "use_fips_endpoint = true", f"https://s3-fips.{REGION}.amazonaws.com"),
    ],
    ids=["neither", "fips", "dualstack", "fips-of-a-profile"],
)
def test_endpoint_with_keys_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, env: dict[str, str], profile: str, url: str | None
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    # botocore looks up the home folder at its import.
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / ".aws" / "config"))
    for name, value in {"AWS_ACCESS_KEY_ID": "AKIAENV", "AWS_SECRET_ACCESS_KEY": "s", **env}.items():
        monkeypatch.setenv(name, value)
    if profile:
        (tmp_path / ".aws").mkdir()
        (tmp_path / ".aws" / "config").write_text(f"[default]\n{profile}\n")
    endpoint = find_endpoint(region=REGION)
    assert (endpoint.url, endpoint.credentials()["access_key_id"]) == (url, "AKIAENV")


@pytest.mark.parametrize(
    ("env", "message", "hint"),
    [
        ({}, "no AWS credentials were found", "aws configure"),
        ({"AWS_PROFILE": "typo"}, r"profile \(typo\) could not be found", "aws configure list-profiles"),
        ({"AWS_ACCESS_KEY_ID": "AKIA"}, "missing: AWS_SECRET_ACCESS_KEY", "aws sts get-caller-identity"),
        ({"AWS_PROFILE": "no-program"}, "/nowhere/keys", "aws sts get-caller-identity"),
        ({"AWS_PROFILE": "no-json"}, "program or file that the AWS profile names: Expecting value", "get-caller"),
        ({"AWS_PROFILE": "expired"}, "credentials are still expired", "aws sts get-caller-identity"),
        ({"AWS_ROLE_ARN": ROLE_ARN, "AWS_WEB_IDENTITY_TOKEN_FILE": "/nowhere/token"}, "/nowhere/token", "get-caller"),
        ({"AWS_PROFILE": "code"}, "MFA (code|token)", "at a terminal"),
    ],
    ids=lambda value: next(iter(value.values()), "nothing") if isinstance(value, dict) else "",
)
def test_missing_credentials_are_explained(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, env: dict[str, str], message: str, hint: str
) -> None:
    def no_terminal(_: str) -> str:
        raise EOFError

    asks = AssumeRoleProvider.__init__
    defaults = [no_terminal if value is getpass else value for value in asks.__defaults__ or ()]
    monkeypatch.setattr(asks, "__defaults__", tuple(defaults))
    for name, value in {**env, "AWS_ENDPOINT_URL": server.url}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "x").write_bytes(b"x")
    url = f"s3://{BUCKET}/x"
    for run in (
        lambda: s3.put([str(tmp_path / "x")], url, region=REGION, report=silent),
        lambda: s3.get([url], str(tmp_path / "y"), region=REGION),
        lambda: s3.ls(url, region=REGION),
        lambda: describe_cluster(make_clients(REGION).ec2, name="demo", known=KnownInstances()),
    ):
        with pytest.raises(AwsError, match=message) as caught:
            run()
        assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("operation", "code", "words", "hint"),
    [
        ("CreateOAuth2Token", "ValidationException", "no", "sign in again: aws login"),
        ("AssumeRole", "AccessDenied", "is not authorized to perform: sts:AssumeRole", "which role AWS_PROFILE names"),
    ],
)
def test_refused_credentials_are_explained(operation: str, code: str, words: str, hint: str) -> None:
    refused = ClientError({"Error": {"Code": code, "Message": words}}, operation)
    error = explain(refused, "list_objects_v2", bucket=BUCKET, key=None)
    assert words in error.message
    assert hint in (error.hint or "")


def test_keys_that_expire_meanwhile_are_renewed(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program returns new keys after some requests. S3 still accepts old keys from requests that are under way."""
    requests, on_their_way, file = 12, 48, tmp_path / "generation"
    small = replace(transfer.TIERS[0], files_at_once=requests)
    monkeypatch.setattr(transfer, "TIERS", (small, *transfer.TIERS[1:]))
    write_program(tmp_path, key_id="AKIA$generation")
    file.write_text("0\n")
    counted, one_at_a_time = itertools.count(1), threading.Lock()

    def judge(asked: Asked) -> Refusal | None:
        with one_at_a_time:
            number = next(counted)
            (tmp_path / "next").write_text(f"{number // requests}\n")
            (tmp_path / "next").replace(file)
        ended = (int(asked.key_id.removeprefix("AKIA")) + 1) * requests + on_their_way < number
        return Refusal(status=400, code="ExpiredToken", message="The provided token has expired.") if ended else None

    with judging_proxy(server.url, judge) as proxy:
        monkeypatch.setenv("AWS_PROFILE", "process")
        use(tmp_path, [1000] * 3 * requests + [PART_BYTES * 3])
    assert len({asked.key_id for asked in proxy.asked}) > 4
    # Requests under way may have old signatures. A client with old keys would be refused forever.
    assert len(proxy.refused()) < 2 * requests


def test_an_upload_that_outlives_its_credentials_resumes(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys in the environment cannot be renewed: one error, and the next run sends what is missing."""
    write_files(tmp_path / "local", {f"{number}.rec": os.urandom(1000) for number in range(60)})
    count = itertools.count()

    def judge(_: Asked) -> Refusal | None:
        return Refusal(status=400, code="ExpiredToken", message="It has expired.") if next(count) > 40 else None

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ASIA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    with judging_proxy(server.url, judge), pytest.raises(AwsError) as caught:
        s3.put([f"{tmp_path / 'local'}/"], f"s3://{BUCKET}/d/", region=REGION, report=silent)
    assert caught.value.message == "It has expired. (ExpiredToken, put_object)"
    assert "continues where it stopped" in (caught.value.hint or "")
    sent = server.read(BUCKET)
    assert 0 < len(sent) < 60
    done = s3.put([f"{tmp_path / 'local'}/"], f"s3://{BUCKET}/d/", region=REGION, report=silent)
    assert len(done.plan.transfers) == 60 - len(sent)
