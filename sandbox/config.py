"""[sandbox] of cluster.toml: how true to life the local EC2 is to be."""

from typing import Annotated, Literal

from msgspec import Meta, field

from provision.settings import Settings, finite


def _check_fault(text: str) -> str:
    from sandbox.fault_kinds import KINDS  # noqa: PLC0415 - few configurations have a fault
    from sandbox.faults import parse_fault  # noqa: PLC0415 - as above

    fault = parse_fault(text)
    if KINDS[fault.kind].when == "immediate":
        raise ValueError(f"{fault.kind}: acts on an instance that runs: cluster sandbox fault {text}")
    return text


def _check_quota_code(code: str) -> str:
    from sandbox.quotas import QUOTAS  # noqa: PLC0415 - few configurations have a quota

    if code not in QUOTAS:
        listed = ", ".join(f"{known} ({quota.name})" for known, quota in QUOTAS.items())
        raise ValueError(f"there is no quota {code}; allowed: {listed}")
    return code


class SandboxConfig(Settings, frozen=True, kw_only=True):
    """What `cluster sandbox start` starts. Every setting has a default."""

    hosts: Annotated[
        Literal["real", "none"],
        Meta(
            description='"real": a Linux host for each instance; "none": instances without one, for the API alone',
        ),
    ] = "real"
    boot_delay_s: Annotated[
        float,
        Meta(ge=0, le=3600, description="seconds, 0 to 3600, that an instance is pending at least"),
    ] = 0.0
    end_delay_s: Annotated[
        float,
        Meta(ge=0, le=3600, description="seconds, 0 to 3600, that an instance is shutting-down or stopping at least"),
    ] = 0.0
    consistency_delay_s: Annotated[
        float,
        Meta(ge=0, le=3600, description="seconds, 0 to 3600, for which the id of what was just made is not found"),
    ] = 0.0
    link_mbit: Annotated[
        float,
        finite,
        Meta(
            ge=0,
            description="bandwidth of each host's link in Mbit/s, in each direction; 0: unlimited",
        ),
    ] = 0.0
    quotas: Annotated[
        dict[Annotated[str, _check_quota_code], Annotated[int, Meta(ge=0)]],
        Meta(description="vCPUs that may run, by the quota's code in AWS's Service Quotas"),
    ] = field(default_factory=dict)
    faults: Annotated[
        tuple[Annotated[str, _check_fault], ...],
        Meta(
            description='faults that are armed from the start, such as "throttle action=RunInstances count=3"',
        ),
    ] = ()
    policy: Annotated[
        str,
        Meta(
            description="a file with an IAM policy, from the folder of cluster.toml, that the sandbox's credentials "
            'are limited to; "": they may do all',
        ),
    ] = ""
