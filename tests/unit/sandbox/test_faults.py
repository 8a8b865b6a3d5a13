"""Faults: their syntax."""

import inspect

import pytest

from ec2_sandbox import faults
from ec2_sandbox.faults import KINDS, Fault, FaultError, parse_fault


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("thottle", 'did you mean "throttle"?'),
        ("throttle now", '"now" does not have the form name=value; throttle takes service=, action='),
        ("throttle colour=red", "unknown parameter colour="),
        ("slow ms=fast", "a number of milliseconds"),
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


def test_the_function_has_the_parameters_of_all_kinds() -> None:
    parameters = {parameter.name for kind in KINDS.values() for parameter in kind.parameters}
    assert set(inspect.signature(faults.fault).parameters) == {"kind", "count"} | parameters


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (faults.fault("capacity", zone="us-east-1a", free=2), "capacity zone=us-east-1a free=2 count=all"),
        (faults.fault("throttle", action="Run*", count="all"), "throttle 'action=Run*' count=all"),
        (faults.fault("s3-cut", key="a b", count=3), "s3-cut 'key=a b' count=3"),
        (faults.fault("kill", instance="i-1", leaves="running"), "kill instance=i-1 leaves=running"),
    ],
)
def test_a_fault_as_text(made: Fault, text: str) -> None:
    assert faults.render_fault(made) == text
    assert parse_fault(text) == made
    with pytest.raises(FaultError, match="unknown parameter mbit="):
        faults.fault("capacity", mbit=1)
