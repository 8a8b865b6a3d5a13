"""EC2's vCPU quotas: how many vCPUs of a family of instance types may run at once, on demand and as spot.

Codes and families: https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Market = Literal["on-demand", "spot"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Quota:
    """A quota. `families`: the letters that its types' names begin with. `aws_default`: a new account's vCPUs."""

    code: str
    name: str
    market: Market
    families: tuple[str, ...]
    aws_default: int


STANDARD = ("a", "c", "d", "h", "i", "m", "r", "t", "z")
# What the sandbox grants where cluster.toml does not say: no quota is in the way of who does not want to meet one.
GRANTED = 100_000

QUOTAS: dict[str, Quota] = {
    quota.code: quota
    for quota in (
        Quota(code="L-1216C47A", name="Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
              market="on-demand", families=STANDARD, aws_default=5),
        Quota(code="L-DB2E81BA", name="Running On-Demand G and VT instances",
              market="on-demand", families=("g", "gr", "vt"), aws_default=0),
        Quota(code="L-417A185B", name="Running On-Demand P instances",
              market="on-demand", families=("p",), aws_default=0),
        Quota(code="L-34B43A08", name="All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests",
              market="spot", families=STANDARD, aws_default=5),
        Quota(code="L-3819A6DF", name="All G and VT Spot Instance Requests",
              market="spot", families=("g", "gr", "vt"), aws_default=0),
        Quota(code="L-7212CCBC", name="All P4, P3 and P2 Spot Instance Requests",
              market="spot", families=("p",), aws_default=0),
    )
}  # fmt: skip


def find_quota(instance_type: str, market: Market) -> Quota | None:
    """The quota that a type counts against; None for types that the sandbox does not count."""
    letters = _family_of(instance_type)
    return next((q for q in QUOTAS.values() if q.market == market and letters in q.families), None)


def count_vcpus(quota: Quota, running: Iterable[tuple[str, Market]], vcpus: Mapping[str, int]) -> int:
    """How many vCPUs count against a quota. running: (type, market) of each instance; vcpus: those of a type. Pure."""
    return sum(vcpus[kind] for kind, market in running if find_quota(kind, market) is quota)


def _family_of(instance_type: str) -> str:
    """The letters that a type's name begins with: c of c5.xlarge, gr of gr6.4xlarge, dl of dl1, which is not D."""
    family = instance_type.partition(".")[0]
    letters = family[: next((at for at, sign in enumerate(family) if sign.isdigit()), len(family))]
    # im4gn and is4gen are of the I family; the letters behind the digit never say the family.
    return {"im": "i", "is": "i"}.get(letters, letters)
