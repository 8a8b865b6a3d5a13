"""The settings of a sandbox: the behaviour of the local EC2."""

import re
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta, Struct, field

# EC2's vCPU quotas limit how many vCPUs of a family of instance types can run at once, on demand and as spot.
# https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
Market = Literal["on-demand", "spot"]


class Quota(NamedTuple):
    """A quota. `families`: the letters with which the names of its types begin."""

    code: str
    name: str
    market: Market
    families: tuple[str, ...]


STANDARD = ("a", "c", "d", "h", "i", "m", "r", "t", "z")
# The vCPUs that the sandbox grants by default, enough for any cluster.
GRANTED = 100_000

QUOTAS: dict[str, Quota] = {
    quota.code: quota
    for quota in (
        Quota(code="L-1216C47A", name="Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
              market="on-demand", families=STANDARD),
        Quota(code="L-DB2E81BA", name="Running On-Demand G and VT instances",
              market="on-demand", families=("g", "gr", "vt")),
        Quota(code="L-417A185B", name="Running On-Demand P instances",
              market="on-demand", families=("p",)),
        Quota(code="L-34B43A08", name="All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests",
              market="spot", families=STANDARD),
        Quota(code="L-3819A6DF", name="All G and VT Spot Instance Requests",
              market="spot", families=("g", "gr", "vt")),
        Quota(code="L-7212CCBC", name="All P4, P3 and P2 Spot Instance Requests",
              market="spot", families=("p",)),
    )
}  # fmt: skip


def check_fault(text: str) -> str:
    """Returns the text of a fault that can be armed at the start. Raises ValueError, such as FaultError."""
    # These imports take 9 ms, and few configurations have a fault.
    from ec2_sandbox.faults import KINDS, parse_fault  # noqa: PLC0415 - see above

    fault = parse_fault(text)
    if KINDS[fault.kind].when == "immediate":
        raise ValueError(f"{fault.kind}: acts on an instance that runs: to cause it, `sandbox fault {text}`")
    return text


def check_quota_code(code: str) -> str:
    """Returns the code of a quota. Raises ValueError if it is unknown."""
    if code not in QUOTAS:
        listed = ", ".join(f"{known} ({quota.name})" for known, quota in QUOTAS.items())
        raise ValueError(f"there is no quota {code}; allowed: {listed}")
    return code


def check_package(name: str) -> str:
    """Returns the name of a package. Raises ValueError if there is none of this name."""
    # https://www.debian.org/doc/debian-policy/ch-controlfields.html#source
    if re.fullmatch(r"[a-z0-9][a-z0-9+.-]+(=\S+)?", name) is None:
        raise ValueError(f'no package of Debian or Ubuntu has the name "{name}"')
    return name


class SandboxConfig(Struct, frozen=True, kw_only=True):
    """The settings of the sandbox that `ec2-sandbox start` starts. Every setting has a default."""

    hosts: Annotated[
        Literal["real", "none"],
        Meta(description='"real": a Linux host for each instance; "none": instances without one, for the API only'),
    ] = "real"
    boot_delay_s: Annotated[
        float, Meta(ge=0, le=3600, description="seconds, 0 to 3600, that an instance is pending at least")
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
        Meta(
            ge=0,
            le=1_000_000,
            description="bandwidth of each host's link in Mbit/s, in each direction; 0: unlimited",
        ),
    ] = 0.0
    quotas: Annotated[
        dict[Annotated[str, check_quota_code], Annotated[int, Meta(ge=0, le=1_000_000)]],
        Meta(description="vCPUs that may run, by the quota's code in AWS's Service Quotas"),
    ] = field(default_factory=dict)
    faults: Annotated[
        tuple[Annotated[str, check_fault], ...],
        Meta(description='faults that are armed from the start, such as "throttle action=RunInstances count=3"'),
    ] = ()
    packages: Annotated[
        tuple[Annotated[str, check_package], ...],
        Meta(description='packages of this machine\'s distribution that hosts have, such as "slurmd"'),
    ] = ()


DEFAULT_REGION = "us-east-1"
MAX_OTHERS = 2
"""The most regions that a sandbox has besides its own. Their hosts share its address range."""


class FolderSettings(SandboxConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a folder's sandbox: the behaviour of the local EC2, and its regions."""

    region: Annotated[str, Meta(description="its region")] = DEFAULT_REGION
    others: Annotated[
        tuple[str, ...], Meta(max_length=MAX_OTHERS, description="up to two more regions that can have instances")
    ] = ()
