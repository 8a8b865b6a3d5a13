"""The user who called sudo, from the environment. tests/sandbox/cluster/test_under_sudo.py runs commands under sudo."""

import os
import pwd
import sys
from pathlib import Path

import pytest

from ec2_sandbox import sudo

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox, and so sudo, is for Linux")

NOBODY = pwd.getpwnam("nobody")
ROOT_HOME = pwd.getpwuid(0).pw_dir
CALLED = {"SUDO_UID": str(NOBODY.pw_uid), "SUDO_GID": str(NOBODY.pw_gid)}


def find_caller(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], *, euid: int = 0) -> sudo.Caller | None:
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    for name in ("SUDO_UID", "SUDO_GID", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return sudo.find_caller()


@pytest.mark.parametrize(
    ("home", "found"),
    [({"HOME": ROOT_HOME}, NOBODY.pw_dir), ({}, NOBODY.pw_dir), ({"HOME": ""}, NOBODY.pw_dir), ({"HOME": "/h"}, "/h")],
)
def test_the_callers_home_is_homes_value_or_the_accounts(
    home: dict[str, str], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = find_caller(monkeypatch, {**CALLED, **home})
    assert caller == sudo.Caller(uid=NOBODY.pw_uid, gid=NOBODY.pw_gid, name="nobody", home=Path(found))


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SUDO_UID": "0", "SUDO_GID": "0"},
        {**CALLED, "SUDO_UID": "x"},
        {**CALLED, "SUDO_UID": "3000000001"},  # an id without an account
    ],
)
def test_root_without_sudo_has_no_caller(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_caller(monkeypatch, environment) is None


def test_a_user_other_than_root_has_no_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_caller(monkeypatch, CALLED, euid=NOBODY.pw_uid) is None
