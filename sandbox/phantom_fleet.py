"""Instances without hosts: states change as they would, and nothing runs. For tests of the API at scale."""

from sandbox import ec2
from sandbox.instances import SandboxInstance
from sandbox.settings import HostStatus


class PhantomFleet:
    """Stands where Fleet stands when [sandbox] hosts = "none"."""

    def reconcile(self, backend: "ec2.SandboxEC2Backend") -> None:
        """Takes every instance to the state that it is on its way to, when its time has come."""
        with ec2.lock:
            for instance in backend.sandbox_instances():
                self._advance(instance)

    def _advance(self, instance: SandboxInstance) -> None:
        if not instance.may_arrive:
            return
        if instance.state == "pending":
            instance.enter_running()
        elif instance.state == "shutting-down":
            instance.finish_termination()
        elif instance.state == "stopping":
            instance.finish_stop()

    def describe(self, backend: "ec2.SandboxEC2Backend") -> tuple[HostStatus, ...]:
        """Every instance that is not terminated; none has a host."""
        with ec2.lock:
            return tuple(
                HostStatus(
                    instance_id=instance.id,
                    state=instance.state,
                    private_ip=instance.private_ip,
                    public_ip=instance.public_ip,
                    pid=None,
                )
                for instance in backend.sandbox_instances()
                if instance.state != "terminated"
            )

    def enforce(self, backend: "ec2.SandboxEC2Backend") -> None:
        """There is no link on which a security group could be enforced."""

    def read_console(self, instance_id: str) -> str:
        """Nothing: nobody wrote anything."""
        del instance_id
        return ""

    def end_all(self) -> None:
        """There is nothing to end."""
