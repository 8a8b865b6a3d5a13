"""The owners of access keys, and when keys expire."""

import datetime as dt
from collections.abc import Iterator

import pytest
from moto import mock_aws
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.core.utils import utcnow
from moto.sts import urls as sts_urls
from moto.sts.models import sts_backends

from sandbox.api.refusals import RefusedError
from sandbox.iam import principals
from sandbox.iam.policies import Ask
from sandbox.iam.principals import SandboxStsBackend, find_principal, find_secret, install_principals, name_caller

OPERATOR = f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:user/operator"
LOOK = '{"Statement": {"Effect": "Allow", "Action": "ec2:Describe*", "Resource": "*"}}'
KEY = "AKIA" + "A" * 16


@pytest.fixture
def sts(monkeypatch: pytest.MonkeyPatch) -> Iterator[SandboxStsBackend]:
    """moto's IAM and STS in this process, with the sandbox's own user. Both are restored afterwards."""
    monkeypatch.setattr(sts_backends, "backend", sts_backends.backend)
    monkeypatch.setattr(sts_urls, "url_paths", sts_urls.url_paths)
    with mock_aws():
        sts_backends.reset()
        install_principals(KEY, "not a secret", LOOK)
        backend = sts_backends[DEFAULT_ACCOUNT_ID]["aws"]
        assert isinstance(backend, SandboxStsBackend)
        yield backend
    sts_backends.pop(DEFAULT_ACCOUNT_ID, None)


def ask(action: str) -> Ask:
    return Ask(action=action, resource="*", context={})


def test_the_operator_has_the_given_policy(sts: SandboxStsBackend) -> None:
    operator = find_principal(KEY)
    assert (operator.arn, operator.may_do_all) == (OPERATOR, False)
    assert (operator.decide(ask("ec2:DescribeVpcs")), operator.decide(ask("ec2:RunInstances"))) == (
        "allowed",
        "unmentioned",
    )
    assert name_caller(KEY) == OPERATOR
    assert name_caller(None) == name_caller("AKIAUNKNOWN") == "anonymous"


def test_a_session_has_its_owners_rights(sts: SandboxStsBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    key = sts.open_session(KEY, 900)
    assert find_principal(key.access_key_id) == find_principal(KEY)
    assert name_caller(key.access_key_id) == OPERATOR
    later = utcnow() + dt.timedelta(seconds=901)
    monkeypatch.setattr(principals, "utcnow", lambda: later)
    with pytest.raises(RefusedError) as caught:
        find_principal(key.access_key_id)
    assert caught.value.refusal.query_code == "ExpiredToken"


def test_unknown_keys_are_refused(sts: SandboxStsBackend) -> None:
    for find in (find_principal, find_secret):
        with pytest.raises(RefusedError) as caught:
            find("AKIAUNKNOWN")
        assert caught.value.refusal.query_code == "InvalidClientTokenId"


def test_without_a_policy_the_operator_may_do_everything(sts: SandboxStsBackend) -> None:
    principals._iam().users.clear()
    install_principals(KEY, "not a secret", "")
    assert find_principal(KEY).may_do_all
