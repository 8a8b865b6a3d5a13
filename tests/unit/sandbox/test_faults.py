"""Faults: their syntax, when they occur, and the effects of faults on S3's bytes and on hosts."""

import inspect

import pytest

from ec2_sandbox import faults
from ec2_sandbox.api.faults import find_in_chunks, find_refusal
from ec2_sandbox.faults import KINDS, Fault, FaultBook, FaultError, parse_fault


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("thottle", 'did you mean "throttle"?'),
        ("throttle now", '"now" does not have the form name=value; throttle takes service=, action='),
        ("throttle colour=red", "unknown parameter colour="),
        ("throttle rate=1.5", "a share of calls, 0 to 1"),
        ("throttle action=", "an API action"),
        ("throttle count=0", "of at least 1"),
        ("capacity market=reserved", "on-demand or spot"),
        ("kill", "instance= is missing"),
        ("kill instance=i-1 count=2", "takes no count="),
        ("throttle action='A", "No closing quotation"),
    ],
)
def test_invalid_faults_are_refused(text: str, message: str) -> None:
    with pytest.raises(FaultError) as caught:
        parse_fault(text)
    assert message in str(caught.value)


def test_a_rate_is_the_same_for_the_same_seed() -> None:
    def draw(seed: int) -> list[bool]:
        book = FaultBook()
        book.arm(f"throttle rate=0.3 seed={seed}")
        return [book.take("throttle", service="ec2", action="X") is not None for _ in range(50)]

    assert draw(1) == draw(1) != draw(2)
    assert 5 < sum(draw(1)) < 25


SIGNED = b"4;chunk-signature=00ff\r\nabcd\r\n3;chunk-signature=00ff\r\nefg\r\n0;chunk-signature=00ff\r\n\r\n"
PLAIN = b"4\r\nabcd\r\n3\r\nefg\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"


@pytest.mark.parametrize("body", [SIGNED, PLAIN])
@pytest.mark.parametrize(("at_byte", "found"), [(3, b"d"), (4, b"e"), (999, b"g")])
def test_positions_in_a_chunked_body_count_content_only(body: bytes, at_byte: int, found: bytes) -> None:
    at = find_in_chunks(body, at_byte)
    assert at is not None
    assert body[at : at + 1] == found


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, None),
        ({"HTTP_CONTENT_MD5": "x"}, "BadDigest"),
        ({"HTTP_X_AMZ_TRAILER": "x-amz-checksum-crc32"}, "BadDigest"),
        ({"HTTP_X_AMZ_CONTENT_SHA256": "0" * 64}, "XAmzContentSHA256Mismatch"),
    ],
)
def test_s3_refuses_a_changed_upload_that_has_a_checksum(headers: dict[str, str], code: str | None) -> None:
    refusal = find_refusal(headers)
    assert (refusal.code if refusal else None) == code


def test_the_function_has_the_parameters_of_all_kinds() -> None:
    parameters = {parameter.name for kind in KINDS.values() for parameter in kind.parameters}
    assert set(inspect.signature(faults.fault).parameters) == {"kind", "count"} | parameters


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (faults.fault("capacity", zone="us-east-1a", free=2), "capacity zone=us-east-1a free=2 count=all"),
        (faults.fault("throttle", action="Run*", rate=0.5, seed=1), "throttle 'action=Run*' rate=0.5 seed=1 count=all"),
        (faults.fault("s3-cut", key="a b", count=3), "s3-cut 'key=a b' count=3"),
        (faults.fault("kill", instance="i-1", leaves="running"), "kill instance=i-1 leaves=running"),
    ],
)
def test_a_fault_as_text(made: Fault, text: str) -> None:
    assert faults.render_fault(made) == text
    assert parse_fault(text) == made
    with pytest.raises(FaultError, match="unknown parameter mbit="):
        faults.fault("capacity", mbit=1)
