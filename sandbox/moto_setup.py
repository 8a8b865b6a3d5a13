"""Puts the sandbox's extensions in the place of moto's own classes, for the daemon's whole process."""

import datetime as dt

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.core.utils import utcnow
from moto.ec2 import urls as ec2_urls
from moto.ec2 import utils as ec2_utils
from moto.ec2.models import ec2_backends, elastic_ip_addresses, elastic_network_interfaces, instances
from moto.servicequotas import urls as quota_urls
from moto.servicequotas.models import servicequotas_backends

from sandbox import images, moto_speed, uploads
from sandbox.ec2 import Ec2Settings, PublicAddresses, SandboxEC2Backend
from sandbox.ec2_actions import SandboxEC2Response
from sandbox.instances import SandboxInstance
from sandbox.service_quotas import SandboxQuotasBackend, SandboxQuotasResponse

# DescribeInstances' filters that moto lacks, and the instance's attribute that each compares.
INSTANCE_FILTERS = {
    "placement-group-name": "placement.group_name", "client-token": "client_token", "instance-lifecycle": "lifecycle",
    "spot-instance-request-id": "spot_instance_request_id", "instance-state-code": "state_code",
}  # fmt: skip


def install(settings: Ec2Settings) -> SandboxEC2Backend:
    """Puts the extensions in moto's place and gives the EC2 backend of the sandbox's region."""
    SandboxEC2Backend.settings = settings
    ec2_backends.backend = SandboxEC2Backend
    ec2_urls.url_paths = {"{0}/": SandboxEC2Response.dispatch}
    ec2_utils.filter_dict_attribute_mapping.update(INSTANCE_FILTERS)
    # So that CreateTags and DescribeTags know what it is.
    ec2_utils.EC2_RESOURCE_TO_PREFIX["placement-group"] = "pg"
    ec2_utils.EC2_PREFIX_TO_RESOURCE["pg"] = "placement-group"
    instances.Instance = SandboxInstance  # type: ignore[misc]
    SandboxQuotasBackend.granted = settings.config.quotas
    servicequotas_backends.backend = SandboxQuotasBackend
    quota_urls.url_paths = {"{0}/$": SandboxQuotasResponse.dispatch}
    uploads.install()
    moto_speed.install()
    backend = ec2_backends[DEFAULT_ACCOUNT_ID][settings.region]
    assert isinstance(backend, SandboxEC2Backend)  # noqa: S101 -- made by the line above that names it
    addresses = PublicAddresses(settings.public, backend)
    elastic_network_interfaces.random_public_ip = addresses.take  # type: ignore[attr-defined]
    elastic_ip_addresses.random_ip = addresses.take  # type: ignore[attr-defined]
    images.publish(backend, _some_weeks_ago())
    return backend


def _some_weeks_ago() -> dt.datetime:
    """When the public images were published: recent, and the same for all of one month's sandboxes."""
    month = utcnow().replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return (month - dt.timedelta(days=1)).replace(day=10)
