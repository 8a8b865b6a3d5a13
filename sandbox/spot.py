"""Spot instances that RunInstances launches: the request that goes with each, and what it is in the end."""

import datetime as dt
from typing import Any, cast

from moto.core.utils import utcnow
from moto.ec2.models.spot_requests import SpotInstanceRequest
from moto.ec2.utils import random_spot_request_id

from sandbox.instances import ENDED, INTERRUPTED, SandboxInstance


class SandboxSpotRequest(SpotInstanceRequest):
    """moto's, for an instance that is there already, and with a state that follows the instance's."""

    def __init__(self, instance: SandboxInstance, options: dict[str, Any], tags: dict[str, dict[str, str]]) -> None:
        self._instance = instance
        self._created = utcnow()
        self._stored_state = "open"
        super().__init__(
            ec2_backend=instance.ec2_backend,
            spot_request_id=random_spot_request_id(),
            price=options.get("MaxPrice", ""),
            image_id=instance.image_id,
            spot_instance_type=options.get("SpotInstanceType", "one-time"),
            valid_from=None,
            valid_until=options.get("ValidUntil"),
            launch_group=None,
            availability_zone_group=None,
            key_name=cast("str", instance.key_name),
            security_groups=[group.id for group in instance.security_groups],
            user_data=instance.user_data,
            instance_type=instance.instance_type,
            placement=instance.placement.zone,
            kernel_id=None,
            ramdisk_id=None,
            monitoring_enabled=instance.monitored,
            subnet_id=cast("str", instance.subnet_id),
            # moto's own key for these has a letter too many.
            tags={**tags, "spot-instances-request": tags.get("spot-instances-request", {})},
            spot_fleet_id=None,
            instance_interruption_behaviour=options.get("InstanceInterruptionBehavior"),
        )

    def launch_instance(self) -> SandboxInstance:
        """The instance that there is."""
        return self._instance

    @property
    def state(self) -> str:
        """`active` while the instance is there, `closed` afterwards, unless it was cancelled before."""
        if self._stored_state == "active" and self._instance.state in ENDED:
            return "closed"
        return self._stored_state

    @state.setter
    def state(self, value: str) -> None:
        self._stored_state = value

    @property
    def status(self) -> dict[str, Any]:
        """https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-request-status.html."""
        if self._instance.state not in ENDED:
            cancelled = self._stored_state == "cancelled"
            code = "request-canceled-and-instance-running" if cancelled else "fulfilled"
        elif self._instance.state_reason.code == INTERRUPTED:
            code = "instance-terminated-no-capacity"
        else:
            code = "instance-terminated-by-user"
        return {"Code": code, "Message": code.replace("-", " "), "UpdateTime": self._created}

    @property
    def create_time(self) -> dt.datetime:  # type: ignore[override]  # moto's is a constant of 2015
        """When it was made."""
        return self._created

    @property
    def launched_availability_zone(self) -> str | None:
        """Where its instance is."""
        return self._instance.placement.zone

    def get_filter_value(self, filter_name: str, method_name: str | None = None) -> Any:
        """As moto's, and those filters that it does not know."""
        known = {"instance-id": self._instance.id, "launched-availability-zone": self.launched_availability_zone,
                 "status-code": self.status["Code"], "type": self.type}  # fmt: skip
        return known[filter_name] if filter_name in known else super().get_filter_value(filter_name, method_name)


def register(instances: list[SandboxInstance], options: dict[str, Any], tags: dict[str, dict[str, str]]) -> None:
    """Gives every instance of a spot launch the request that EC2 makes for it."""
    for instance in instances:
        request = SandboxSpotRequest(instance, options, tags)
        instance.spot_instance_request_id = request.id
        instance.ec2_backend.spot_instance_requests[request.id] = request
