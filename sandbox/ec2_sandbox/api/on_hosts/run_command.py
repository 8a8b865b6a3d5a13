"""Run Command of AWS Systems Manager: shell scripts that run on the hosts, as root.

The sandbox behaves like an account with Default Host Management: each running instance is a managed node, whatever its
instance profile. https://docs.aws.amazon.com/systems-manager/latest/userguide/monitor-commands.html
"""

import datetime as dt
import platform
import threading
from collections.abc import Iterable
from typing import Any, cast

from moto.core.responses import ActionResult
from moto.ec2.models import ec2_backends
from moto.ssm.exceptions import SSMException
from moto.ssm.models import Command
from moto.ssm.responses import SimpleSystemManagerResponse

from ec2_sandbox.api.ec2 import SandboxEC2Backend, lock
from ec2_sandbox.api.instances import SandboxInstance
from ec2_sandbox.hosts.inside import run_inside

DOCUMENT = "AWS-RunShellScript"
PARAMETERS = {"commands", "workingDirectory", "executionTimeout"}
DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S = 3600, 172800
# What GetCommandInvocation returns of both outputs, and ListCommandInvocations of the first.
STDOUT_CHARACTERS, STDERR_CHARACTERS, LISTED_CHARACTERS = 24000, 8000, 2500
KILLED_CODE = 137
RUN = "/usr/lib/ec2-sandbox/run-command"  # in hosts/root


class SandboxCommand(Command):
    """A command, which runs on its instances from the moment that it is made."""

    def __init__(self, **request: Any) -> None:
        _check(request)
        super().__init__(**request)
        self._script = "\n".join(self.parameters["commands"]) + "\n"
        self._working_directory = "".join(self.parameters.get("workingDirectory", []))
        self._timeout_s = int(self.parameters.get("executionTimeout", [str(DEFAULT_TIMEOUT_S)])[0])
        for invocation in self.invocations:
            threading.Thread(target=self._run, args=(invocation,), name="run-command", daemon=True).start()

    def _get_instance_ids_from_targets(self) -> list[str]:
        """Returns the instances that the targets name. Raises SSMException for instances that cannot be reached."""
        nodes = [node.id for node in find_nodes(self.account_id, self.backend_region)]
        named = [*self.instance_ids, *(v for t in self.targets if t["Key"] == "InstanceIds" for v in t["Values"])]
        if unknown := sorted(set(named) - set(nodes)):
            raise SSMException(
                "InvalidInstanceId", f"Instances [[{', '.join(unknown)}]] not in a valid state for account "
                f"{self.account_id}",
            )  # fmt: skip
        filters = {target["Key"]: target["Values"] for target in self.targets if target["Key"] != "InstanceIds"}
        if not filters:
            return named
        with lock:
            reservations = ec2_backends[self.account_id][self.backend_region].all_reservations(filters=filters)
        return [*named, *(i.id for r in reservations for i in r.instances if i.id in nodes)]

    def invocation_response(self, instance_id: str, plugin_name: str) -> dict[str, Any]:
        """Returns the response of GetCommandInvocation before the command runs; `_run` changes it."""
        times = dict.fromkeys(("ExecutionStartDateTime", "ExecutionElapsedTime", "ExecutionEndDateTime"), "")
        state = {"Status": "Pending", "StatusDetails": "Pending", "ResponseCode": -1}
        return {**super().invocation_response(instance_id, plugin_name), **times, **state}

    def _run(self, invocation: dict[str, Any]) -> None:
        """Runs the script on an instance to its end."""
        instance_id, begun = invocation["InstanceId"], _now()
        pid = SandboxEC2Backend.settings.fleet.find_host(instance_id)
        if pid is None:
            invocation.update(Status="TimedOut", StatusDetails="DeliveryTimedOut")
            return
        invocation.update(Status="InProgress", StatusDetails="InProgress", ExecutionStartDateTime=_render(begun))
        root = f"/var/lib/amazon/ssm/{instance_id}/document/orchestration/{self.command_id}"
        folder = f"{root}/awsrunShellScript/0.awsrunShellScript"
        done = run_inside(
            pid, RUN, folder, self._working_directory, stdin=self._script, timeout_s=self._timeout_s,
            AWS_SSM_INSTANCE_ID=instance_id, AWS_SSM_REGION_NAME=self.backend_region,
        )  # fmt: skip
        ended = _now()
        code = done.returncode if done.returncode >= 0 else KILLED_CODE
        status = details = "Failed" if code else "Success"
        if code == KILLED_CODE and (ended - begun).total_seconds() >= self._timeout_s:
            status, details = "TimedOut", "ExecutionTimedOut"
        stdout, stderr = _read_output(pid, folder, done.stdout)
        invocation.update(
            ResponseCode=code, StandardOutputContent=stdout,
            StandardErrorContent=stderr + (f"failed to run commands: exit status {code}" if status == "Failed" else ""),
            ExecutionElapsedTime=f"PT{(ended - begun).total_seconds():.3f}S", ExecutionEndDateTime=_render(ended),
        )  # fmt: skip
        invocation.update(Status=status, StatusDetails=details)  # last, since clients wait for it

    def response_object(self) -> dict[str, Any]:
        """Returns the response of SendCommand, and an entry of ListCommands."""
        status, details = summarize((one["Status"], one["StatusDetails"]) for one in self.invocations)
        return {**super().response_object(), "Status": status, "StatusDetails": details}


def _read_output(pid: int, folder: str, failure: bytes) -> tuple[str, str]:
    """Returns the beginning of both outputs. failure: what was printed before the script began."""
    limits = (("stdout", STDOUT_CHARACTERS), ("stderr", STDERR_CHARACTERS))
    stdout, stderr = (run_inside(pid, "head", "-c", str(size), f"{folder}/{name}") for name, size in limits)
    if stdout.returncode or stderr.returncode:  # the host has ended, or its disk is full
        return "", failure.decode(errors="replace")
    return stdout.stdout.decode(errors="replace"), stderr.stdout.decode(errors="replace")


def _check(request: dict[str, Any]) -> None:
    """Raises SSMException for a command that the sandbox cannot run."""
    parameters = request["parameters"] or {}
    timeout = "".join(parameters.get("executionTimeout", [str(DEFAULT_TIMEOUT_S)]))
    if str(request["document_name"]).rpartition("/")[2] != DOCUMENT:
        raise SSMException("InvalidDocument", f"The sandbox has only the document {DOCUMENT}")
    if not parameters.get("commands") or set(parameters) - PARAMETERS:
        raise SSMException("InvalidParameters", f"{DOCUMENT} needs commands, and allows {', '.join(PARAMETERS)}")
    if not timeout.isdecimal() or not 1 <= int(timeout) <= MAX_TIMEOUT_S:
        raise SSMException("InvalidParameters", f"executionTimeout is not 1 to {MAX_TIMEOUT_S} seconds: {timeout}")
    if not request["instance_ids"] and not request["targets"]:
        raise SSMException("ValidationException", "SendCommand needs InstanceIds or Targets")
    if request["output_s3_bucket_name"]:
        raise SSMException("InvalidOutputFolder", "The sandbox does not write the output of commands to S3")


def summarize(states: Iterable[tuple[str, str]]) -> tuple[str, str]:
    """Returns the status of a command, and its details, of those of its invocations. Pure."""
    order = ("Success", "Failed", "TimedOut", "Pending", "InProgress")
    return max(states, key=lambda state: order.index(state[0]), default=("Success", "NoInstancesInTag"))


def find_nodes(account_id: str, region: str) -> list[SandboxInstance]:
    """Returns the instances of a region on which commands can run."""
    backend = cast("SandboxEC2Backend", ec2_backends[account_id][region])
    with lock:
        running = [one for one in backend.sandbox_instances() if one.state == "running"]
    return [one for one in running if backend.settings.fleet.find_host(one.id) is not None]


class SandboxSsmResponse(SimpleSystemManagerResponse):
    """The actions of Run Command that moto lacks."""

    def list_command_invocations(self) -> ActionResult:
        """Returns the invocations of one command, or of all, on one instance or on all."""
        commands = self.ssm_backend.list_commands(self._get_param("CommandId"), None)
        instance_id, details = self._get_param("InstanceId"), bool(self._get_param("Details"))
        found = [
            {**one, "RequestedDateTime": command.requested_date_time, "CommandPlugins": _plugins(one) * details}
            for command in commands
            for one in command.invocations
            if instance_id in (None, one["InstanceId"])
        ]
        return ActionResult({"CommandInvocations": found})

    def describe_instance_information(self) -> ActionResult:
        """Returns the managed nodes."""
        nodes = find_nodes(self.current_account, self.region)
        for filter_ in self._get_param("Filters", []):
            if filter_["Key"] != "InstanceIds":
                raise SSMException("InvalidFilterKey", f"The sandbox does not have the filter {filter_['Key']}")
            nodes = [node for node in nodes if node.id in filter_["Values"]]
        return ActionResult({"InstanceInformationList": [describe_node(node) for node in nodes]})


def _plugins(invocation: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the only step of a command, with its output. Pure."""
    stderr = invocation["StandardErrorContent"]
    output = invocation["StandardOutputContent"] + (f"\n----------ERROR-------\n{stderr}" if stderr else "")
    copied = {name: invocation[name] for name in ("Status", "StatusDetails", "ResponseCode")}
    return [{"Name": invocation["PluginName"], **copied, "Output": output[:LISTED_CHARACTERS]}]


def describe_node(node: SandboxInstance) -> dict[str, Any]:
    """Returns an entry of DescribeInstanceInformation. Hosts have the machine's distribution."""
    system = platform.freedesktop_os_release()
    return {
        "InstanceId": node.id, "PingStatus": "Online", "LastPingDateTime": _now(), "IsLatestVersion": True,
        "PlatformType": "Linux", "PlatformName": system["NAME"], "PlatformVersion": system.get("VERSION_ID", ""),
        "ResourceType": "EC2Instance", "IPAddress": str(node.private_ip), "ComputerName": node.private_dns_name,
        "RegistrationDate": node.launch_time, "AgentVersion": "3.3.0.0",
    }  # fmt: skip


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _render(time: dt.datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
