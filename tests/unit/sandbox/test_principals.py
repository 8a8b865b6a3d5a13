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
    # Installing replaces both.
    monkeypatch.setattr(sts_backends, "backend", sts_backends.backend)
    monkeypatch.setattr(sts_urls, "url_paths", sts_urls.url_paths)
    with mock_aws():
        sts_backends.reset()
        install_principals(KEY, "not a secret")
        yield
    sts_backends.pop(DEFAULT_ACCOUNT_ID, None)


@pytest.mark.filterwarnings("ignore:.* with code AccessDenied does not match")  # moto's model of STS lacks it
@pytest.mark.usefixtures("_principals")
def test_nobody_has_the_rights_of_a_role_that_does_not_exist() -> None:
    sts = boto3.client("sts", region_name="us-east-1", aws_access_key_id=KEY, aws_secret_access_key="not a secret")
    arn = f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:role/none"
    with pytest.raises(ClientError, match=rf"AccessDenied.*{OPERATOR} is not authorized .* on resource: {arn}"):
        sts.assume_role(RoleArn=arn, RoleSessionName="test")


@pytest.mark.usefixtures("_principals")
def test_temporary_keys_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    sts: Any = sts_backends[DEFAULT_ACCOUNT_ID]["aws"]
    key = sts.open_session(KEY, 900)
    assert find_secret(key.access_key_id) == (key.secret_access_key, key.session_token)
    assert name_caller(key.access_key_id) == OPERATOR
    later = utcnow() + dt.timedelta(seconds=901)
    monkeypatch.setattr(principals, "utcnow", lambda: later)
    with pytest.raises(RefusedError) as caught:
        find_secret(key.access_key_id)
    assert caught.value.refusal.query_code == "ExpiredToken"
