"""The capacity reservation or Capacity Block of [provision] reservation, as the first place to try."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError
from msgspec import Struct

from foundation.durations import render_time
from provision.aws.clients import error_code
from provision.config import ProvisionConfig, all_types, setting_error
from provision.model import count

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

_NOT_FOUND = frozenset({"InvalidCapacityReservationId.NotFound", "InvalidCapacityReservationId.Malformed"})


class Reservation(Struct, frozen=True, kw_only=True):
    """A capacity reservation. is_block: a Capacity Block. free: the number of instances that it can still hold.

    ends_at: when it ends; None if it does not end.
    """

    reservation_id: str
    instance_type: str
    zone: str
    state: str
    free: int
    is_block: bool = False
    starts_at: datetime | None = None
    ends_at: datetime | None = None


def find_reservation(ec2: EC2Client, config: ProvisionConfig) -> Reservation | None:
    """Returns the reservation of [provision] reservation; None for "none", or if another of the regions may have it.

    Raises ConfigError if the only region does not have it, and boto3's errors.
    """
    if config.reservation == "none":
        return None
    try:
        found = ec2.describe_capacity_reservations(CapacityReservationIds=[config.reservation])["CapacityReservations"]
    except ClientError as error:
        if error_code(error) not in _NOT_FOUND:
            raise
        found = []
    if not found and config.regions:
        return None
    if not found:
        problem = f"{config.region} has no such capacity reservation of this account"
        hint = f"aws ec2 describe-capacity-reservations --region {config.region} lists them; or set another region"
        raise setting_error(config, "reservation", problem, hint=hint)
    one = found[0]
    return Reservation(
        reservation_id=one["CapacityReservationId"],
        instance_type=one["InstanceType"],
        zone=one["AvailabilityZone"],
        state=one["State"],
        free=one.get("AvailableInstanceCount", 0),
        is_block=one.get("ReservationType") == "capacity-block",
        starts_at=one.get("StartDate"),
        ends_at=one.get("EndDate"),
    )


def find_obstacle(config: ProvisionConfig, reservation: Reservation, *, least: int) -> str | None:
    """Returns why the reservation cannot be used for `least` nodes; None if it can. Pure.

    Raises ConfigError if its type is not one of the cluster's types.
    """
    if reservation.instance_type not in all_types(config):
        problem = f"it is for {reservation.instance_type}, and instance_type is {config.instance_type}"
        hint = f'set instance_type = "{reservation.instance_type}"'
        raise setting_error(config, "reservation", problem, hint=hint)
    if reservation.state != "active":
        starts = f", and starts at {render_time(reservation.starts_at.timestamp())}" if reservation.starts_at else ""
        return f"it is {reservation.state}{starts if reservation.state in {'scheduled', 'pending'} else ''}"
    if reservation.free < least:
        return f"it has room for {count(reservation.free, 'more instance')}, {least} are needed"
    return None


def render_end(reservation: Reservation) -> str | None:
    """Returns a warning about the end of a reservation; None if it does not end. Pure."""
    if reservation.ends_at is None:
        return None
    when = render_time(reservation.ends_at.timestamp())
    if reservation.is_block:
        # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html
        return f"Capacity Block {reservation.reservation_id} ends at {when}: AWS terminates its instances 30 min before"
    return f"reservation {reservation.reservation_id} ends at {when}: its instances run on"
