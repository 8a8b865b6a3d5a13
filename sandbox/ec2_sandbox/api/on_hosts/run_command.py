"""Run Command of AWS Systems Manager: shell scripts that run on the hosts, as root.

The sandbox behaves like an account with Default Host Management: each running instance is a managed node, whatever its
instance profile. https://docs.aws.amazon.com/systems-manager/latest/userguide/monitor-commands.html
"""

import datetime as dt
import platform
import subprocess
import threading
from collections.abc import Sequence
from typing import Any, cast

from moto.core.responses import ActionResult
from moto.ec2.models import ec2_backends
from moto.ssm.exceptions import SSMException
from moto.ssm.models import Command
from moto.ssm.responses import SimpleSystemManagerResponse

from ec2_sandbox.api.ec2 import SandboxEC2Backend, lock
from ec2_sandbox.api.instances import SandboxInstance
from ec2_sandbox.hosts.inside import kill_inside, read_inside, start_inside

DOCUMENT = "AWS-RunShellScript"
PLUGIN = "aws:runShellScript"
PARAMETERS = {"commands", "workingDirectory", "executionTimeout"}
DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S = 3600, 172800
# What GetCommandInvocation returns of both outputs, and ListCommandInvocations of the first.
STDOUT_CHARACTERS, STDERR_CHARACTERS, LISTED_CHARACTERS = 24000, 8000, 2500
KILLED_CODE = 137
# The agent's own layout. The script comes from standard input.
RUN = """\
umask 077
mkdir -p "$1"
cd "$1"
cat >_script.sh
chmod 700 _script.sh
exec </dev/null >stdout 2>stderr
[ -z "$2" ] || cd "$2"
exec sh -c "$1/_script.sh"
"""


class Invocation:
    """A command on one instance. Thread-safe."""

    def __init__(self, command: "SandboxCommand", instance_id: str) -> None:
        self.instance_id = instance_id
        self.status, self.details, self.code = "Pending", "Pending", -1
        self.stdout = self.stderr = ""
        self.begun: dt.datetime | None = None
        self.ended: dt.datetime | None = None
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        root = f"/var/lib/amazon/ssm/{instance_id}/document/orchestration/{command.command_id}"
        self._folder = f"{root}/awsrunShellScript/0.awsrunShellScript"

    def run(self) -> None:
        """Runs the script to its end, unless the command is cancelled before."""
        pid = SandboxEC2Backend.settings.fleet.find_host(self.instance_id)
        with self._lock:
            if self.ended is not None:
                return
            self.begun = _now()
            if pid is None:
                self._finish("TimedOut", "DeliveryTimedOut", -1)
                return
            self.status = self.details = "InProgress"
            words = ("sh", "-euc", RUN, "sh", self._folder, self._command.working_directory)
            region = self._command.backend_region
            process = start_inside(pid, words, AWS_SSM_INSTANCE_ID=self.instance_id, AWS_SSM_REGION_NAME=region)
            self._process = process
        try:
            failure, _ = process.communicate(self._command.script.encode(), self._command.timeout_s)
            is_late = False
        except subprocess.TimeoutExpired:
            is_late = True
            kill_inside(process)
            failure, _ = process.communicate()
        self._read_output(pid, failure)
        with self._lock:
            self._conclude(process.returncode, is_late=is_late)

    def _conclude(self, code: int, *, is_late: bool) -> None:
        if self.status == "Cancelling":
            self._finish("Cancelled", "Cancelled", KILLED_CODE)
        elif is_late:
            self._finish("TimedOut", "ExecutionTimedOut", KILLED_CODE)
        elif code == 0:
            self._finish("Success", "Success", code)
        else:
            code = KILLED_CODE if code < 0 else code
            self.stderr += f"failed to run commands: exit status {code}"
            self._finish("Failed", "Failed", code)

    def cancel(self) -> None:
        """Kills the script, or lets it never begin."""
        with self._lock:
            if self.ended is not None:
                return
            if self._process is None:
                self._finish("Cancelled", "Cancelled", -1)
                return
            self.status = self.details = "Cancelling"
            kill_inside(self._process)

    def _finish(self, status: str, details: str, code: int) -> None:
        self.status, self.details, self.code, self.ended = status, details, code, _now()

    def _read_output(self, pid: int, failure: bytes) -> None:
        """Reads the beginning of both outputs. failure: what was printed before the script began."""
        limits = (("stdout", STDOUT_CHARACTERS), ("stderr", STDERR_CHARACTERS))
        try:
            self.stdout, self.stderr = (
                read_inside(pid, ("head", "-c", str(size), f"{self._folder}/{name}")) for name, size in limits
            )
        except (OSError, subprocess.SubprocessError):  # the host has ended, or its disk is full
            self.stderr = failure.decode(errors="replace")

    def describe(self) -> dict[str, Any]:
        """Returns the response of GetCommandInvocation."""
        begun, ended = self.begun, self.ended if self.begun else None
        elapsed = (ended or _now()) - begun if begun else dt.timedelta()
        return {
            **self._describe_command(),
            "PluginName": PLUGIN,
            "ResponseCode": self.code,
            "ExecutionStartDateTime": _render(begun),
            "ExecutionElapsedTime": f"PT{elapsed.total_seconds():.3f}S" if begun else "",
            "ExecutionEndDateTime": _render(ended),
            "StandardOutputContent": self.stdout,
            "StandardOutputUrl": "",
            "StandardErrorContent": self.stderr,
            "StandardErrorUrl": "",
        }

    def list(self, *, details: bool) -> dict[str, Any]:
        """Returns an entry of ListCommandInvocations. details: with the output."""
        output = self.stdout + (f"\n----------ERROR-------\n{self.stderr}" if self.stderr else "")
        plugin = {
            "Name": PLUGIN, "Status": self.status, "StatusDetails": self.details, "ResponseCode": self.code,
            "ResponseStartDateTime": self.begun, "ResponseFinishDateTime": self.ended,
            "Output": output[:LISTED_CHARACTERS],
        }  # fmt: skip
        requested = {"RequestedDateTime": self._command.requested_date_time}
        return {**self._describe_command(), **requested, "CommandPlugins": [plugin] if details else []}

    def _describe_command(self) -> dict[str, Any]:
        return {
            "CommandId": self._command.command_id, "InstanceId": self.instance_id, "Comment": self._command.comment,
            "DocumentName": self._command.document_name, "DocumentVersion": "$DEFAULT",
            "Status": self.status, "StatusDetails": self.details,
        }  # fmt: skip


class SandboxCommand(Command):
    """A command, which runs on its instances from the moment that it is made."""

    def __init__(self, **request: Any) -> None:
        _check(request)
        super().__init__(**request)
        parameters = self.parameters
        self.script = "\n".join(parameters["commands"]) + "\n"
        self.working_directory = "".join(parameters.get("workingDirectory", []))
        self.timeout_s = int(parameters.get("executionTimeout", [str(DEFAULT_TIMEOUT_S)])[0])
        self.runs = [Invocation(self, instance_id) for instance_id in self.instance_ids]
        for run in self.runs:
            threading.Thread(target=run.run, name="run-command", daemon=True).start()

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
        """Returns what moto stores, which the sandbox does not use."""
        return {"InstanceId": instance_id, "PluginName": plugin_name}

    def get_invocation(self, instance_id: str, plugin_name: str | None) -> dict[str, Any]:
        """Returns the response of GetCommandInvocation. Raises SSMException."""
        found = next((run for run in self.runs if run.instance_id == instance_id), None)
        if found is None:
            raise SSMException("InvocationDoesNotExist", "")
        if plugin_name not in (None, PLUGIN, PLUGIN.replace(":", "")):
            raise SSMException("InvalidPluginName", "")
        return found.describe()

    def response_object(self) -> dict[str, Any]:
        """Returns the response of SendCommand, and an entry of ListCommands."""
        status, details = summarize([(run.status, run.details) for run in self.runs])
        counts = {
            "TargetCount": len(self.runs),
            "CompletedCount": sum(run.ended is not None for run in self.runs),
            "ErrorCount": sum(run.status == "Failed" for run in self.runs),
            "DeliveryTimedOutCount": sum(run.details == "DeliveryTimedOut" for run in self.runs),
        }
        return {**super().response_object(), "Status": status, "StatusDetails": details, **counts}


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


def summarize(runs: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Returns the status of a command, and its details, of those of its invocations. Pure."""
    if not runs:
        return "Success", "NoInstancesInTag"
    found = {status for status, _ in runs}
    if found & {"Pending", "InProgress"}:
        return "InProgress", "InProgress"
    return max(runs, key=lambda run: ("Success", "Failed", "TimedOut", "Cancelled", "Cancelling").index(run[0]))


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
        runs = [run for command in commands for run in cast("SandboxCommand", command).runs]
        listed = [run.list(details=details) for run in runs if instance_id in (None, run.instance_id)]
        return ActionResult({"CommandInvocations": listed})

    def cancel_command(self) -> ActionResult:
        """Cancels a command, on some instances or on all."""
        command = cast("SandboxCommand", self.ssm_backend.get_command_by_id(self._get_param("CommandId")))
        wanted = self._get_param("InstanceIds") or command.instance_ids
        for run in command.runs:
            if run.instance_id in wanted:
                run.cancel()
        return ActionResult({})

    def describe_instance_information(self) -> ActionResult:
        """Returns the managed nodes."""
        nodes = find_nodes(self.current_account, self.region)
        for filter_ in self._get_param("Filters", []):
            if filter_["Key"] != "InstanceIds":
                raise SSMException("InvalidFilterKey", f"The sandbox does not have the filter {filter_['Key']}")
            nodes = [node for node in nodes if node.id in filter_["Values"]]
        return ActionResult({"InstanceInformationList": [describe_node(node) for node in nodes]})


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


def _render(time: dt.datetime | None) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if time else ""
