"""Capacity reservations, which moto lacks: create, describe, cancel, and launch instances in them.

https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateCapacityReservation.html
"""

import secrets
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from moto.core.utils import utcnow
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.core import TaggedEC2Resource
from moto.ec2.utils import generic_filter

from ec2_sandbox.api.instances import SandboxInstance

USING = ("pending", "running", "stopping")


class CapacityReservation(TaggedEC2Resource):
    """A reservation, with the attributes of EC2's response. `reservation_type`: default or capacity-block."""

    def __init__(self, ec2_backend: Any, request: dict[str, Any], *, count: int, reservation_type: str) -> None:
        self.ec2_backend = ec2_backend
        self.id = self.capacity_reservation_id = f"cr-0{secrets.token_hex(8)}"
        self.owner_id = ec2_backend.account_id
        where = f"{ec2_backend.region_name}:{self.owner_id}"
        self.capacity_reservation_arn = f"arn:aws:ec2:{where}:capacity-reservation/{self.id}"
        self.instance_type: str = request["InstanceType"]
        self.instance_platform: str = request.get("InstancePlatform", "Linux/UNIX")
        self.availability_zone: str = request["AvailabilityZone"]
        self.instance_match_criteria: str = request.get("InstanceMatchCriteria", "open")
        self.tenancy = "default"
        self.end_date: datetime | None = request.get("EndDate")
        self.end_date_type: str = request.get("EndDateType", "unlimited")
        self.start_date = self.create_date = utcnow()
        self.total_instance_count = count
        self.reservation_type = reservation_type
        self.state = "active"

    @property
    def available_instance_count(self) -> int:
        """The number of instances that can still launch in it."""
        if self.state != "active":
            return 0
        users = (one for one in self.ec2_backend.sandbox_instances() if one.capacity_reservation_id == self.id)
        return self.total_instance_count - sum(one.state in USING for one in users)


class CapacityReservations:
    """The reservations of one region. Methods that look up a reservation raise EC2ClientError for an unknown id."""

    def __init__(self, ec2_backend: Any) -> None:
        self._backend = ec2_backend
        self._reservations: dict[str, CapacityReservation] = {}

    def create(self, request: dict[str, Any], *, count: int, reservation_type: str = "default") -> CapacityReservation:
        """Creates a reservation, which is active immediately."""
        reservation = CapacityReservation(self._backend, request, count=count, reservation_type=reservation_type)
        self._reservations[reservation.id] = reservation
        return reservation

    def get(self, reservation_id: str) -> CapacityReservation:
        """Returns the reservation with this id."""
        if reservation_id not in self._reservations:
            what = f"The capacity reservation ID '{reservation_id}' does not exist"
            raise EC2ClientError("InvalidCapacityReservationId.NotFound", what)
        return self._reservations[reservation_id]

    def describe(self, ids: Iterable[str], filters: dict[str, Any] | None) -> list[CapacityReservation]:
        """Returns the reservations with these ids, or all reservations, that match the filters."""
        found = [self.get(one) for one in ids] or list(self._reservations.values())
        return generic_filter(filters or {}, found)

    def check_launch(
        self, reservation_id: str, *, instance_type: str, zone: str | None, low: int, market_type: str | None
    ) -> int:
        """Returns how many instances a launch in the reservation can have, at least `low`.

        Raises EC2ClientError if the launch does not match the reservation, or if fewer are free.
        """
        reservation = self.get(reservation_id)
        if (market_type == "capacity-block") != (reservation.reservation_type == "capacity-block"):
            market = market_type or "on-demand"
            what = f"The market type '{market}' does not fit the capacity reservation '{reservation_id}'."
            raise EC2ClientError("InvalidParameterCombination", what)
        for what, requested, reserved in (
            ("instance type", instance_type, reservation.instance_type),
            ("Availability Zone", zone, reservation.availability_zone),
        ):
            if requested is not None and requested != reserved:
                message = f"The {what} '{requested}' does not match that of the capacity reservation, '{reserved}'."
                raise EC2ClientError("InvalidParameterValue", message)
        return self.check_start(reservation_id, low)

    def check_start(self, reservation_id: str, count: int) -> int:
        """Returns how many instances can start in the reservation. Raises EC2ClientError for less than `count`."""
        reservation = self.get(reservation_id)
        if reservation.state != "active":
            what = f"The capacity reservation '{reservation_id}' is in an invalid state for the requested operation."
            raise EC2ClientError("InvalidCapacityReservationState", what)
        free = reservation.available_instance_count
        if free < count:
            raise EC2ClientError(
                "ReservationCapacityExceeded",
                f"The requested reservation '{reservation_id}' does not have sufficient compatible and available "
                "capacity for this request.",
            )
        return free

    def assign(self, instances: Iterable[SandboxInstance], reservation_id: str) -> None:
        """Records that the instances use a reservation."""
        is_block = self.get(reservation_id).reservation_type == "capacity-block"
        for instance in instances:
            instance.capacity_reservation_id = reservation_id
            if is_block:
                instance.lifecycle = "capacity-block"
