"""The name server's answers. tests/sandbox/sandbox/hosts/test_names.py asks it from hosts."""

from ipaddress import IPv4Network

import dns.flags
import dns.message
import dns.rcode
import pytest

from ec2_sandbox.hosts.names import Names, Record, answer

NAMES = {
    region: Names(region=region, private=IPv4Network("10.47.0.0/16"), public=IPv4Network("198.18.0.0/20"))
    for region in ("us-east-1", "eu-west-1")
}
HAVE_IT = {"198.18.0.5": "10.47.0.4"}
HOME = "ip-10-47-0-4.ec2.internal"


@pytest.mark.parametrize(
    ("region", "name", "record"),
    [
        ("us-east-1", HOME, Record("A", "10.47.0.4")),
        ("us-east-1", "ec2-198-18-0-5.compute-1.amazonaws.com", Record("A", "10.47.0.4")),
        ("us-east-1", "ec2-198-18-0-6.compute-1.amazonaws.com", None),  # an address that no instance has
        ("us-east-1", "4.0.47.10.in-addr.arpa", Record("PTR", f"{HOME}.")),
        ("eu-west-1", "ip-10-47-0-4.eu-west-1.compute.internal", Record("A", "10.47.0.4")),
        # Names of another region, another VPC and the other kind, and texts that only look like names.
        ("eu-west-1", HOME, None),
        ("us-east-1", "ip-10-48-0-4.ec2.internal", None),
        ("us-east-1", "4.0.48.10.in-addr.arpa", None),
        ("us-east-1", "ip-10-47-0.ec2.internal", None),
        ("us-east-1", "example.org", None),
    ],
)
def test_records_of_names(region: str, name: str, record: Record | None) -> None:
    assert NAMES[region].look_up(name, HAVE_IT.get) == record


@pytest.mark.parametrize("junk", [b"", b"\xff" * 512, dns.message.QueryMessage(id=1).to_wire()])
def test_invalid_messages_get_no_answer(junk: bytes) -> None:
    assert answer(junk, NAMES["us-east-1"], HAVE_IT.get) is None
