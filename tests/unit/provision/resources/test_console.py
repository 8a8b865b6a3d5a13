import base64
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from hypothesis import given
from hypothesis import strategies as st

from foundation.errors import AwsError
from provision.resources.console import (
    find_console_lines,
    find_host_fingerprints,
    parse_fingerprints,
)

BEGIN = "-----BEGIN SSH HOST KEY FINGERPRINTS-----"
END = "-----END SSH HOST KEY FINGERPRINTS-----"
ECDSA, ED25519, RSA, OLD = (f"SHA256:{letter * 42}{sign}" for letter, sign in ("a+", "b/", "cC", "d0"))
KEYS = (f"256 {ECDSA} root@ip-10-0-0-5 (ECDSA)", f"256 {ED25519} root@ip-10-0-0-5 (ED25519)")
OLD_BLOCK = (BEGIN, f"3072 {OLD} root@ip-10-0-0-5 (RSA)", END)
PUBLIC = ("-----BEGIN SSH HOST KEY KEYS-----", "ssh-ed25519 AAAA root@ip", "-----END SSH HOST KEY KEYS-----")

UBUNTU = f"""\
[    0.000000] Linux version 6.8.0-1021-aws (buildd@lcy02) (x86_64-linux-gnu-gcc-13)\r
Ubuntu 22.04.5 LTS ip-10-0-0-5 ttyS0\r
\r
ip-10-0-0-5 login: [   21.308642] cloud-init[1186]: Cloud-init v. 24.4 running 'modules:final' at Thu, 20 Nov.\r
ci-info: | ssh-ed25519 | SHA256:eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee | - | the-user |\r
<14>Nov 20 13:00:01 ec2: \r
<14>Nov 20 13:00:01 ec2: #############################################################\r
<14>Nov 20 13:00:01 ec2: {BEGIN}\r
<14>Nov 20 13:00:01 ec2: {KEYS[0]}\r
[   21.9] audit: type=1400 apparmor="STATUS" 256 {OLD} of nothing\r
<14>Nov 20 13:00:01 ec2: {KEYS[1]}\r
<14>Nov 20 13:00:01 ec2: {END}\r
<14>Nov 20 13:00:01 ec2: #############################################################\r
{PUBLIC[0]}\r
{PUBLIC[1]}\r
{PUBLIC[2]}\r
[   22.131] cloud-init[1186]: Cloud-init v. 24.4 finished at Thu, 20 Nov. Up 22.12 seconds\r
"""


def text(*lines: str, before: str = "", end: str = "\n") -> str:
    return "".join(f"{before}{line}{end}" for line in lines)


@pytest.mark.parametrize(
    ("console", "found"),
    [
        pytest.param(UBUNTU, {ECDSA, ED25519}, id="Ubuntu on EC2"),
        pytest.param(
            text(BEGIN, *KEYS, END, before="\x1b[0;32m\x1b]0;title\x07", end="\x1b[0m\r\n"),
            {ECDSA, ED25519},
            id="coloured",
        ),
        pytest.param(text(*OLD_BLOCK, BEGIN, *KEYS, END), {ECDSA, ED25519}, id="the last of two boots"),
        pytest.param(text(*OLD_BLOCK, BEGIN, KEYS[0]), set(), id="being written: an older boot's do not count"),
        pytest.param(text(BEGIN, *KEYS, END, KEYS[0].replace(ECDSA, RSA)), {ECDSA, ED25519}, id="a key after it"),
        pytest.param(
            text(BEGIN, "2048 MD5:aa:bb:cc root@ip (RSA)", "2048 aa:bb:cc root@ip (RSA)", KEYS[1], END),
            {ED25519},
            id="MD5 as well",
        ),
        pytest.param(text(BEGIN, f"256 {ECDSA}x root (ECDSA)", f"256 {ED25519[:-1]} root (ED25519)", END), set(),
                     id="too long and too short"),
        pytest.param(text(BEGIN, f"sshd: invalid user 256 {RSA} x (RSA) from 192.0.2.1", KEYS[0], END), {ECDSA},
                     id="another program's line in between"),
    ],
)  # fmt: skip
def test_fingerprints_of_the_last_complete_block(console: str, found: set[str]) -> None:
    assert parse_fingerprints(console) == found


@given(st.integers(min_value=0, max_value=len(UBUNTU)), st.integers(min_value=0, max_value=len(UBUNTU)))
def test_a_truncated_console_shows_all_keys_or_none(start: int, end: int) -> None:
    """If only some of the keys were known, the others would look like an attacker's."""
    assert parse_fingerprints(UBUNTU[start:end]) in (frozenset(), {ECDSA, ED25519})


LATEST = {"InstanceId": "i-1", "Latest": True}


@pytest.fixture
def answers() -> Iterator[Stubber]:
    """What EC2 answers, in turn."""
    ec2 = boto3.client("ec2", region_name="us-east-1", aws_access_key_id="testing", aws_secret_access_key="testing")
    with Stubber(ec2) as stubber:
        yield stubber
        stubber.assert_no_pending_responses()


def test_an_instance_type_without_the_latest_output(answers: Stubber) -> None:
    ec2: Any = answers.client
    two_boots = base64.b64encode((UBUNTU * 2).encode()).decode()
    for _ in range(2):
        answers.add_client_error("get_console_output", "UnsupportedOperation", expected_params=LATEST)
        answers.add_response("get_console_output", {"Output": two_boots}, {"InstanceId": "i-1"})
    assert find_host_fingerprints(ec2, "i-1") == {ECDSA, ED25519}
    lines = find_console_lines(ec2, "i-1")
    assert ["Linux version" in line for line in lines].count(True) == 1
    assert lines[-1].endswith("Up 22.12 seconds")


def test_throttling_is_not_an_error(answers: Stubber) -> None:
    """The caller tries again later, up to a time limit."""
    ec2: Any = answers.client
    for code in ("InvalidInstanceID.NotFound", "UnauthorizedOperation"):
        answers.add_client_error("get_console_output", code, expected_params=LATEST)
        with pytest.raises(AwsError, match=code):
            find_host_fingerprints(ec2, "i-1")
    answers.add_client_error("get_console_output", "RequestLimitExceeded")
    assert find_host_fingerprints(ec2, "i-1") == frozenset()
