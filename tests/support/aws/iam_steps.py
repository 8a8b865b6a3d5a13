"""Roles and instance profiles, and clients with their keys. Policies have no effect in the sandbox."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import botocore.session
from botocore.config import Config

from ec2_client import Client, client

ACCOUNT = "123456789012"


def document(*statements: Mapping[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


PRINCIPALS = {"Service": "ec2.amazonaws.com", "AWS": f"arn:aws:iam::{ACCOUNT}:root"}
TRUST = document({"Effect": "Allow", "Principal": PRINCIPALS, "Action": "sts:AssumeRole"})


def client_of(service: str, keys: Mapping[str, Any], **config: Any) -> Client:
    """A botocore client with these keys; one attempt per call."""
    return botocore.session.get_session().create_client(
        service,
        aws_access_key_id=keys["AccessKeyId"],
        aws_secret_access_key=keys["SecretAccessKey"],
        aws_session_token=keys.get("SessionToken"),
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, **config),
    )


def make_profile(name: str) -> dict[str, Any]:
    """Returns launch options for a new instance profile, whose role has the same name."""
    iam = client("iam")
    iam.create_role(RoleName=name, AssumeRolePolicyDocument=TRUST)
    iam.create_instance_profile(InstanceProfileName=name)
    iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
    return {"IamInstanceProfile": {"Name": name}}


@contextmanager
def instance_profile(name: str) -> Iterator[dict[str, Any]]:
    """Like `make_profile`, but deletes everything at the end of the block."""
    iam = client("iam")
    yield make_profile(name)
    iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=name)
    iam.delete_instance_profile(InstanceProfileName=name)
    iam.delete_role(RoleName=name)
