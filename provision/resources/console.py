"""An instance's console output in EC2: the fingerprints of its ssh host keys, and its last lines.

cloud-init prints the fingerprints once, in the last stage of an instance's first boot (module cc_keys_to_console, with
frequency PER_INSTANCE). They are available while EC2's 64 KB contain them. The output arrives through AWS's API, over
TLS, so the instance's key is known before anything is sent to its address.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from provision.aws.clients import aws_errors, unless_refused
from provision.aws.error_hints import RETRY_CODES

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

LONGEST_LINE = 160
"""The most characters of a line that are shown."""

_KERNEL = " Linux version "
"""In the first line that a kernel prints."""
_BEGIN = "-----BEGIN SSH HOST KEY FINGERPRINTS-----"
_END = "-----END SSH HOST KEY FINGERPRINTS-----"
_KEY_LINE = re.compile(r"(?:^|\s)\d+ (SHA256:[A-Za-z0-9+/]{43})\s.*\([A-Z0-9-]+\)$")
"""A line of ssh-keygen -l: bits, fingerprint, comment, type; after any prefix of cloud-init, syslog or the kernel."""
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
"""A terminal's control sequence: CSI, OSC, or a shorter one (ECMA-48)."""


def find_host_fingerprints(ec2: EC2Client, instance_id: str) -> frozenset[str]:
    """Returns the fingerprints (`SHA256:...`) of an instance's ssh host keys; empty until its console shows them.

    Also empty after a minute of throttling: the caller tries again later. Raises AwsError, which names
    ec2:GetConsoleOutput if that permission is missing.
    """
    with aws_errors(f"reading the console of {instance_id}, which shows its host keys' fingerprints"):
        return parse_fingerprints(unless_refused(RETRY_CODES, lambda: _read_console(ec2, instance_id)) or "")


def find_console_lines(ec2: EC2Client, instance_id: str) -> tuple[str, ...]:
    """Returns the non-empty lines of an instance's last boot on its console, safe to print. Raises AwsError."""
    with aws_errors(f"reading the console of {instance_id}"):
        lines = [line for line in _plain_lines(_read_console(ec2, instance_id)) if line]
    begin = max((number for number, line in enumerate(lines) if _KERNEL in line), default=0)
    return tuple(line[:LONGEST_LINE] for line in lines[begin:])


def parse_fingerprints(console: str) -> frozenset[str]:
    """Returns the SHA256 fingerprints in the last block of host keys on a console. Pure.

    Empty if that block has no end: it is still being written, or EC2's 64 KB limit has cut it. A block of an earlier
    boot is not used instead, since the keys may be new.
    """
    found: set[str] = set()
    complete: frozenset[str] = frozenset()
    inside = False
    for line in _plain_lines(console):
        if line.endswith(_BEGIN):
            inside, found, complete = True, set(), frozenset()
        elif line.endswith(_END):
            if inside:
                complete = frozenset(found)
            inside = False
        elif inside and (key := _KEY_LINE.search(line)):
            found.add(key[1])
    return complete


def _plain_lines(console: str) -> list[str]:
    """Returns a console's lines without terminal control sequences. Pure."""
    lines = _ESCAPE.sub("", console).splitlines()
    return ["".join(letter for letter in line if letter.isprintable() or letter == "\t").rstrip() for line in lines]


def _read_console(ec2: EC2Client, instance_id: str) -> str:
    """Returns the last 64 KB of a console's output; the newest output if the instance type supports that.

    Only Nitro types support `Latest`; the output of others may be some minutes old
    (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_GetConsoleOutput.html).
    """
    read = partial(ec2.get_console_output, InstanceId=instance_id)
    shown = unless_refused({"UnsupportedOperation"}, lambda: read(Latest=True)) or read()
    return shown.get("Output", "")
