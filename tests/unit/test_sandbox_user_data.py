"""User data: what is a script, and where a host finds it."""

import gzip
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText

import pytest

from sandbox.user_data import parse_user_data, render_first_boot

FOLDER = "/var/lib/cloud/instances/i-1"


def paths_of(user_data: bytes) -> dict[str, str]:
    return {file.path: file.content for file in render_first_boot("i-1", user_data)}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("#!/bin/sh\ntrue\n", "text/x-shellscript"),
        ("\n#!/bin/sh\n", "text/x-shellscript"),
        ("#cloud-config\n{}\n", "text/cloud-config"),
        ("#cloud-boothook\ntrue\n", "text/cloud-boothook"),
        ("#include\nhttp://127.0.0.1/\n", "text/x-include-url"),
        ("just text", "text/plain"),
    ],
)
def test_kind_is_told_by_the_beginning(text: str, kind: str) -> None:
    assert [part.kind for part in parse_user_data(text.encode())] == [kind]
    assert [part.kind for part in parse_user_data(gzip.compress(text.encode()))] == [kind]


@pytest.mark.parametrize("nothing", [b"", b" \n"])
def test_no_user_data(nothing: bytes) -> None:
    assert parse_user_data(nothing) == ()
    assert paths_of(nothing)[f"{FOLDER}/warnings"] == ""


def test_parts_of_a_message_keep_their_order() -> None:
    message = MIMEMultipart()
    for kind, text in (
        ("x-shellscript", "#!/bin/sh\necho 1\n"),
        ("plain", "#!/bin/sh\necho 2\n"),
        ("x-shellscript-per-boot", "#!/bin/sh\necho 3\n"),
        ("cloud-boothook", "echo 4\n"),
        ("cloud-config", "#cloud-config\n{}\n"),
    ):
        message.attach(MIMEText(text, kind))
    files = paths_of(message.as_bytes())
    assert files[f"{FOLDER}/scripts/part-001"] == "#!/bin/sh\necho 1\n"
    assert files[f"{FOLDER}/scripts/part-002"] == "#!/bin/sh\necho 2\n"
    assert files["/var/lib/cloud/scripts/per-boot/part-003"] == "#!/bin/sh\necho 3\n"
    assert files[f"{FOLDER}/boothooks/part-004"] == "echo 4\n"
    assert files[f"{FOLDER}/warnings"] == "the sandbox does not run user data of type text/cloud-config\n"
    assert not any("part-005" in path for path in files)


@pytest.mark.parametrize("broken", [b"\x1f\x8bno gzip", b"\xff\xfe\x00", b"MIME-Version: 1.0\n\n\xff"])
def test_what_cannot_be_read_is_no_script(broken: bytes) -> None:
    assert not any("part-" in path for path in paths_of(broken))
