"""[sandbox] of cluster.toml: how true to life the local EC2 is to be."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict

from sandbox.fault_kinds import KINDS
from sandbox.faults import parse_fault
from sandbox.quotas import QUOTAS

Seconds = Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)]


def _check_fault(text: str) -> str:
    fault = parse_fault(text)
    if KINDS[fault.kind].when == "immediate":
        raise ValueError(f"{fault.kind}: acts on an instance that runs: cluster sandbox fault {text}")
    return text


def _check_quota_code(code: str) -> str:
    if code not in QUOTAS:
        listed = ", ".join(f"{known} ({quota.name})" for known, quota in QUOTAS.items())
        raise ValueError(f"there is no quota {code}; is allowed: {listed}")
    return code


FaultText = Annotated[str, AfterValidator(_check_fault)]
QuotaCode = Annotated[str, AfterValidator(_check_quota_code)]


class SandboxConfig(BaseModel):
    """What `cluster sandbox start` starts. Every field has a default; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    hosts: Literal["real", "none"] = Field(
        default="real",
        description='"real": a Linux host for each instance; "none": instances without one, for the API alone',
    )
    boot_delay_s: Seconds = Field(default=0.0, description="seconds, 0 to 3600, that an instance is pending at least")
    end_delay_s: Seconds = Field(
        default=0.0,
        description="seconds, 0 to 3600, that an instance is shutting-down or stopping at least",
    )
    consistency_delay_s: Seconds = Field(
        default=0.0, description="seconds, 0 to 3600, for which the id of what was just made is not found"
    )
    link_mbit: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.0, description="bandwidth of each host's link in Mbit/s, in each direction; 0: unlimited"
    )
    quotas: dict[QuotaCode, Annotated[int, Field(ge=0)]] = Field(
        default={}, description="vCPUs that may run, by the quota's code in AWS's Service Quotas"
    )
    faults: Annotated[tuple[FaultText, ...], Strict(strict=False)] = Field(
        default=(), description='faults that are armed from the start, such as "throttle action=RunInstances count=3"'
    )
    policy: str = Field(
        default="",
        description="a file with an IAM policy, from the folder of cluster.toml, that the sandbox's credentials are "
        'limited to; "": they may do all',
    )
