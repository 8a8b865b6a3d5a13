"""The capacity reservation or Capacity Block of [provision] reservation, as the first place to try."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from provision.aws.clients import unless_refused
from provision.config import ProvisionConfig, all_types, setting_error

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

_NOT_FOUND = frozenset({"InvalidCapacityReservationId.NotFound", "InvalidCapacityReservationId.Malformed"})


class Reservation(Struct, frozen=True, kw_only=True):
    """A capacity reservation. is_block: a Capacity Block. free: the number of instances that it can still hold."""

    reservation_id: str
    instance_type: str
    zone: str
    state: str
    free: int
    is_block: bool = False


def find_reservation(ec2: EC2Client, config: ProvisionConfig) -> Reservation | None:
    """Returns the reservation of [provision] reservation; None for "none", or if another of the regions may have it.

    Raises ConfigError if the only region does not have it, or if it is for another type, and boto3's errors.
    """
    if config.reservation == "none":
        return None
    read = partial(ec2.describe_capacity_reservations, CapacityReservationIds=[config.reservation])
    found = unless_refused(_NOT_FOUND, lambda: read()["CapacityReservations"])
    if not found and config.regions:
        return None
    if not found:
        problem = f"{config.region} has no such capacity reservation of this account"
        hint = f"aws ec2 describe-capacity-reservations --region {config.region} lists them; or set another region"
        raise setting_error(config, "reservation", problem, hint=hint)
    one = found[0]
    if one["InstanceType"] not in all_types(config):
        problem = f"it is for {one['InstanceType']}, and instance_type is {config.instance_type}"
        raise setting_error(config, "reservation", problem, hint=f'set instance_type = "{one["InstanceType"]}"')
    return Reservation(
        reservation_id=one["CapacityReservationId"],
        instance_type=one["InstanceType"],
        zone=one["AvailabilityZone"],
        state=one["State"],
        free=one.get("AvailableInstanceCount", 0),
        is_block=one.get("ReservationType") == "capacity-block",
    )
