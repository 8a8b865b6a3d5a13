"""Replaces moto's own classes with the sandbox's, for the whole process."""

from moto.core.base_backend import BackendDict, backend_lock
from moto.core.model_instances import reset_model_data
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2 import urls as ec2_urls
from moto.ec2 import utils as ec2_utils
from moto.ec2.models import (
    ec2_backends,
    elastic_block_store,
    elastic_ip_addresses,
    elastic_network_interfaces,
    instances,
)
from moto.ec2instanceconnect import urls as instance_connect_urls
from moto.fsx import models as fsx_models
from moto.iam import policy_validation
from moto.servicequotas import urls as quota_urls

from ec2_sandbox.api.ec2 import Ec2Settings, PublicAddresses, Regions, SandboxEC2Backend
from ec2_sandbox.api.ec2_actions import SandboxEC2Response
from ec2_sandbox.api.file_systems import SandboxFileSystem
from ec2_sandbox.api.instances import SandboxInstance
from ec2_sandbox.api.limits import SandboxQuotasResponse
from ec2_sandbox.api.on_hosts.instance_connect import SandboxInstanceConnectResponse
from ec2_sandbox.api.volumes import SandboxAttachment, SandboxSnapshot, SandboxVolume
from ec2_sandbox.hosts.names import Names

# DescribeInstances' filters that moto lacks, and the instance attribute that each one compares.
INSTANCE_FILTERS = {
    "client-token": "client_token", "instance-lifecycle": "lifecycle", "placement-group-name": "placement.group_name",
    "spot-instance-request-id": "spot_instance_request_id",
}  # fmt: skip


def install(settings: Ec2Settings) -> Regions:
    """Installs the sandbox's classes. Returns EC2 in all its regions."""
    SandboxEC2Backend.settings = settings
    ec2_backends.backend = SandboxEC2Backend
    ec2_urls.url_paths = {"{0}/": SandboxEC2Response.dispatch}
    ec2_utils.filter_dict_attribute_mapping.update(INSTANCE_FILTERS)
    # For CreateTags and DescribeTags.
    ec2_utils.EC2_RESOURCE_TO_PREFIX["placement-group"] = "pg"
    ec2_utils.EC2_PREFIX_TO_RESOURCE["pg"] = "placement-group"
    ec2_utils.EC2_RESOURCE_TO_PREFIX["capacity-reservation"] = "cr"
    ec2_utils.EC2_PREFIX_TO_RESOURCE["cr"] = "capacity-reservation"
    instances.Instance = SandboxInstance  # type: ignore[misc]
    elastic_block_store.Volume = SandboxVolume  # type: ignore[misc]
    elastic_block_store.Snapshot = SandboxSnapshot  # type: ignore[misc]
    elastic_block_store.VolumeAttachment = SandboxAttachment  # type: ignore[misc]
    fsx_models.FileSystem = SandboxFileSystem  # type: ignore[misc]
    SandboxQuotasResponse.granted = settings.config.quotas
    quota_urls.url_paths = {"{0}/$": SandboxQuotasResponse.dispatch}
    instance_connect_urls.url_paths = {"{0}/$": SandboxInstanceConnectResponse.dispatch}
    # IAM treats a policy without a version as version 2008-10-17; moto would refuse it.
    validator = policy_validation.BaseIAMPolicyValidator
    validator._validate_version = validator._validate_version_syntax  # type: ignore[method-assign]  # noqa: SLF001
    backends = [ec2_backends[DEFAULT_ACCOUNT_ID][region] for region in settings.regions]
    found = tuple(backend for backend in backends if isinstance(backend, SandboxEC2Backend))
    addresses = PublicAddresses(settings.ranges.public, found)
    elastic_network_interfaces.random_public_ip = addresses.take  # type: ignore[attr-defined]
    elastic_ip_addresses.random_ip = addresses.take  # type: ignore[attr-defined]
    names = Names(region=settings.config.region, private=settings.ranges.private, public=settings.ranges.public)
    elastic_network_interfaces.generate_dns_from_ip = names.name_of  # type: ignore[attr-defined,assignment]
    SandboxEC2Backend.whole = found
    return found


def forget() -> None:
    """Forgets the state of all services, so that it is as after `install`. Call it under EC2's lock.

    The services' backends stay the same objects.
    """
    with backend_lock:
        for service in BackendDict._instances:  # type: ignore[misc]  # noqa: SLF001 -- its reset() would replace them
            for account in service.values():
                account.reset()
    reset_model_data()
