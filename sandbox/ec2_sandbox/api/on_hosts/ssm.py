"""AWS Systems Manager: the parameters that name the public images, and Run Command. Imported at its first call."""

from moto.ec2.models import ec2_backends
from moto.ssm import models, urls

from ec2_sandbox.api.images import SandboxAmi
from ec2_sandbox.api.on_hosts.run_command import SandboxCommand, SandboxSsmResponse


class SandboxParameters(models.ParameterDict):
    """A region's parameters, which begin with those of its public images."""

    def __init__(self, account_id: str, region_name: str) -> None:
        super().__init__(account_id, region_name)
        # moto's own parameters name images that the sandbox does not have.
        self.latest_amis_loaded = self.latest_ecs_amis_loaded = True
        for ami in ec2_backends[account_id][region_name].amis.values():
            if isinstance(ami, SandboxAmi) and ami.parameter:
                self[ami.parameter].append(
                    models.Parameter(  # type: ignore[abstract]  # moto creates them the same way
                        account_id=account_id,
                        name=ami.parameter,
                        value=ami.id,
                        parameter_type="String",
                        description=None,
                        allowed_pattern=None,
                        keyid=None,
                        last_modified_date=ami.creation_date,
                        version=1,
                        data_type="aws:ec2:image",
                    )
                )


models.ParameterDict = SandboxParameters  # type: ignore[misc]
models.Command = SandboxCommand  # type: ignore[misc,assignment]
urls.url_paths = {"{0}/$": SandboxSsmResponse.dispatch}
