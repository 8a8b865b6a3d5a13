import datetime as dt
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.core.utils import utcnow
from moto.sts import urls as sts_urls
from moto.sts.models import sts_backends

from ec2_sandbox.api.refusals import RefusedError
from ec2_sandbox.iam import principals
from ec2_sandbox.iam.principals import find_secret, install_principals, name_caller

OPERATOR = f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:user/operator"
KEY = "AKIA" + "A" * 16


@pytest.fixture
def _principals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sts_urls, "url_paths", sts_urls.url_paths)  # installing replaces it
    with mock_aws():
        sts_backends.reset()
        install_principals(KEY, "not a secret")
        yield
    sts_backends.pop(DEFAULT_ACCOUNT_ID, None)


def make_client() -> Any:
    return boto3.client("sts", region_name="us-east-1", aws_access_key_id=KEY, aws_secret_access_key="not a secret")


@pytest.mark.filterwarnings("ignore:.* with code AccessDenied does not match")  # moto's model of STS lacks it
@pytest.mark.usefixtures("_principals")
def test_nobody_has_the_rights_of_a_role_that_does_not_exist() -> None:
    arn = f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:role/none"
    with pytest.raises(ClientError, match=rf"AccessDenied.*{OPERATOR} is not authorized .* on resource: {arn}"):
        make_client().assume_role(RoleArn=arn, RoleSessionName="test")


@pytest.mark.usefixtures("_principals")
def test_temporary_keys_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = make_client().get_session_token(DurationSeconds=900)["Credentials"]
    assert find_secret(keys["AccessKeyId"]) == (keys["SecretAccessKey"], keys["SessionToken"])
    assert name_caller(keys["AccessKeyId"]) == OPERATOR
    later = utcnow() + dt.timedelta(seconds=901)
    monkeypatch.setattr(principals, "utcnow", lambda: later)
    with pytest.raises(RefusedError) as caught:
        find_secret(keys["AccessKeyId"])
    assert caught.value.refusal.query_code == "ExpiredToken"
