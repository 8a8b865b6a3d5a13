"""DescribeInstanceStatus: EC2's checks follow the hosts.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-system-instance-status-check.html
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError

from ec2_sandbox.api.actions.base import SandboxActions
from ec2_sandbox.api.instances import CheckResult, Checks, SandboxInstance

REACHABILITY = {"ok": "passed", "impaired": "failed", "initializing": "initializing"}


def describe_status(instance: SandboxInstance, checks: Checks) -> dict[str, Any]:
    """Returns an instance's status in the format of the API. Pure."""
    return {
        "InstanceId": instance.id,
        "AvailabilityZone": str(instance.availability_zone),
        "InstanceState": {"Code": instance.state_code, "Name": instance.state},
        "SystemStatus": _describe_check(checks.system),
        "InstanceStatus": _describe_check(checks.instance),
    }


def _describe_check(result: CheckResult) -> dict[str, Any]:
    details = [{"Name": "reachability", "Status": REACHABILITY[result]}] if result in REACHABILITY else []
    return {"Status": result, "Details": details}


def matches(status: Mapping[str, Any], filters: Mapping[str, Iterable[str]]) -> bool:
    """Returns whether a status matches the filters. Pure. Raises EC2ClientError for a filter that EC2 does not have."""
    instance, system = status["InstanceStatus"], status["SystemStatus"]
    values = {
        "availability-zone": status["AvailabilityZone"],
        "instance-state-code": str(status["InstanceState"]["Code"]),
        "instance-state-name": status["InstanceState"]["Name"],
        "instance-status.status": instance["Status"],
        "instance-status.reachability": next((detail["Status"] for detail in instance["Details"]), ""),
        "system-status.status": system["Status"],
        "system-status.reachability": next((detail["Status"] for detail in system["Details"]), ""),
    }
    if unknown := set(filters) - set(values):
        raise EC2ClientError("InvalidParameterValue", f"The filter '{min(unknown)}' is invalid")
    return all(values[name] in wanted for name, wanted in filters.items())


class StatusActions(SandboxActions):
    """The action on instance status."""

    def describe_instance_status(self) -> ActionResult:
        """Returns the status of the running instances, or of all, that the caller names and that match the filters."""
        backend = self.sandbox_backend
        if ids := self._get_param("InstanceIds", []):
            found = cast("list[SandboxInstance]", backend.get_multi_instances_by_id(ids))
        else:
            found = backend.sandbox_instances()
        states = None if self._get_bool_param("IncludeAllInstances") else ("running",)
        filters = cast("dict[str, list[str]]", self._filters_from_querystring())
        statuses = (
            describe_status(instance, backend.check(instance))
            for instance in found
            if (states is None or instance.state in states) and not backend.unsettled.hides("i", instance.id)
        )
        return ActionResult({"InstanceStatuses": [status for status in statuses if matches(status, filters)]})
