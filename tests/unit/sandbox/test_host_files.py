"""The files of a host, user data included, and the parts of the metadata service that need no host."""

import gzip

import pytest

from ec2_sandbox.hosts.cloud_init import find_type, render_first_boot
from ec2_sandbox.hosts.metadata import Tokens


def scripts_of(user_data: bytes) -> dict[str, str]:
    files = render_first_boot("i-1", user_data, has_cloud_init=False)
    return {file.path: file.content for file in files if "part-" in file.path}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("#!/bin/sh\ntrue\n", "text/x-shellscript"),
        ("#cloud-config\n{}\n", "text/cloud-config"),
        ("#cloud-boothook\ntrue\n", "text/cloud-boothook"),
        ("just text", "text/plain"),
    ],
)
def test_the_first_line_is_the_type(text: str, kind: str) -> None:
    assert find_type(text) == kind
    assert scripts_of(gzip.compress(text.encode())) == scripts_of(text.encode())


@pytest.mark.parametrize("broken", [b"\x1f\x8bno gzip", b"\xff\xfe\x00", b"MIME-Version: 1.0\n\n\xff"])
def test_invalid_user_data_is_not_a_script(broken: bytes) -> None:
    assert not scripts_of(broken)


def test_a_token_belongs_to_one_instance_until_it_expires() -> None:
    now = [1000.0]
    tokens = Tokens(clock=lambda: now[0])
    token = tokens.issue("i-1", 60)
    assert tokens.is_good("i-1", token)
    assert not tokens.is_good("i-2", token)
    assert not Tokens(clock=lambda: now[0]).is_good("i-1", token)
    now[0] += 60.1
    assert not tokens.is_good("i-1", token)
