"""Which permissions a call of EC2's needs, resource by resource.

https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html
"""

from collections.abc import Iterator, Mapping
from typing import Any

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE
from moto.iam.models import iam_backends

from sandbox.ec2 import DEFAULT_INSTANCE_TYPE, SandboxEC2Backend
from sandbox.permissions import Call, ask_to_pass, read_list, read_tags, tag_context
from sandbox.policies import Ask

# Parameters that name resources, and of which kind.
NAMED = {
    "InstanceId": "instance", "GroupId": "security-group", "KeyName": "key-pair", "KeyPairId": "key-pair",
    "VolumeId": "volume", "NetworkInterfaceId": "network-interface", "SubnetId": "subnet", "VpcId": "vpc",
    "ImageId": "image", "SnapshotId": "snapshot", "AllocationId": "elastic-ip", "LaunchTemplateId": "launch-template",
    "SpotInstanceRequestId": "spot-instances-request", "SecurityGroupRuleId": "security-group-rule",
}  # fmt: skip
# What an action makes, and the parameter that names it where its ARN has a name instead of an id.
CREATED: dict[str, tuple[str, str | None]] = {
    "CreateSecurityGroup": ("security-group", None), "ImportKeyPair": ("key-pair", "KeyName"),
    "CreateKeyPair": ("key-pair", "KeyName"), "CreatePlacementGroup": ("placement-group", "GroupName"),
    "CreateVolume": ("volume", None), "CreateNetworkInterface": ("network-interface", None),
    "CreateSubnet": ("subnet", None), "CreateVpc": ("vpc", None), "CreateSnapshot": ("snapshot", None),
    "CreateLaunchTemplate": ("launch-template", None), "AllocateAddress": ("elastic-ip", None),
    "CreateImage": ("image", None),
}  # fmt: skip
# Reading has no resources, but for these.
READ_OF_RESOURCES = ("DescribeInstanceAttribute",)
TAGGING = ("CreateTags", "DeleteTags")
PUBLIC_KINDS = ("image", "snapshot")  # their ARNs have no account
MADE_BY_LAUNCH = ("instance", "volume", "network-interface")


def describe_ec2_asks(call: Call, backend: SandboxEC2Backend) -> Iterator[Ask]:
    """The permissions that a call of EC2's needs, all of them. To be called under EC2's lock."""
    yield from _Asker(call, backend).describe()


class _Asker:
    def __init__(self, call: Call, backend: SandboxEC2Backend) -> None:
        self._call = call
        self._backend = backend
        self._tree = call.tree
        self._context = {**call.context, "ec2:region": (call.region,)}
        specifications = [one for one in read_list(call.tree.get("TagSpecification")) if isinstance(one, Mapping)]
        self._given = {str(one.get("ResourceType", "")): read_tags(one.get("Tag")) for one in specifications}

    def describe(self) -> Iterator[Ask]:
        action = self._call.action
        if action.startswith("Describe") and action not in READ_OF_RESOURCES:
            yield self._ask("*")
        elif action in TAGGING:
            for resource_id in read_list(self._tree.get("ResourceId")):
                kind = EC2_PREFIX_TO_RESOURCE.get(resource_id.partition("-")[0], "*")
                yield self._ask_of(kind, resource_id, requested=read_tags(self._tree.get("Tag")))
        elif action == "RunInstances":
            yield from self._describe_launch()
        else:
            yield from self._describe_others()
        for kind, tags in self._given.items():
            if tags:
                yield self._ask_to_tag(kind, tags)

    def _describe_others(self) -> Iterator[Ask]:
        kind, name_parameter = CREATED.get(self._call.action, (None, None))
        asks = []
        if kind is not None:
            asks.append(self._ask_to_make(kind, self._new_name()))
        for parameter, named in NAMED.items():
            if parameter != name_parameter:
                asks += [self._ask_of(named, name) for name in read_list(self._tree.get(parameter))]
        # The name is the group's own where it is being made, and the one to look for elsewhere.
        if kind is None and "GroupName" in self._tree:
            named = "security-group" if "SecurityGroup" in self._call.action else "placement-group"
            asks += [self._ask_of(named, name) for name in read_list(self._tree["GroupName"])]
        yield from asks or [self._ask("*")]
        yield from self._ask_for_role()

    def _describe_launch(self) -> Iterator[Ask]:
        """RunInstances needs a permission on each resource that it makes or uses."""
        for kind in MADE_BY_LAUNCH:
            more = {"ec2:instancetype": (str(self._tree.get("InstanceType", DEFAULT_INSTANCE_TYPE)),)}
            yield self._ask_to_make(kind, "*", more if kind == "instance" else {})
        if "spot-instances-request" in self._given:
            yield self._ask_to_make("spot-instances-request", "*")
        yield self._ask_of("image", str(self._tree.get("ImageId", "*")))
        nics = [one for one in read_list(self._tree.get("NetworkInterface")) if isinstance(one, Mapping)]
        subnets = [self._tree.get("SubnetId"), *(nic.get("SubnetId") for nic in nics)]
        subnet_id = next((str(one) for one in subnets if one), None) or self._default_subnet()
        yield self._ask_of("subnet", subnet_id)
        groups = read_list(self._tree.get("SecurityGroupId")) + read_list(self._tree.get("SecurityGroup"))
        for nic in nics:
            groups += read_list(nic.get("SecurityGroupId"))
            if "NetworkInterfaceId" in nic:
                yield self._ask_of("network-interface", str(nic["NetworkInterfaceId"]))
        for group in groups or [self._default_group(subnet_id)]:
            yield self._ask_of("security-group", group)
        if "KeyName" in self._tree:
            yield self._ask_of("key-pair", str(self._tree["KeyName"]))
        placement = self._tree.get("Placement", {})
        if name := placement.get("GroupName") or placement.get("GroupId"):
            yield self._ask_of("placement-group", name)
        template = self._tree.get("LaunchTemplate", {})
        if template:
            yield self._ask_of("launch-template", template.get("LaunchTemplateId", "*"))
        yield from self._ask_for_role()

    def _ask_for_role(self) -> Iterator[Ask]:
        """To give instances a role is to pass that role to EC2. A profile that is not there EC2 itself refuses."""
        asked = self._tree.get("IamInstanceProfile", {})
        for profile in list(iam_backends[DEFAULT_ACCOUNT_ID]["aws"].get_instance_profiles()):
            if profile.name == asked.get("Name") or profile.arn == asked.get("Arn"):
                for role in profile.roles:
                    yield ask_to_pass(self._call, role.arn)

    def _ask(self, resource: str, context: Mapping[str, tuple[str, ...]] | None = None) -> Ask:
        return Ask(action=f"ec2:{self._call.action}", resource=resource, context={**self._context, **(context or {})})

    def _ask_of(self, kind: str, name: Any, *, requested: Mapping[str, str] | None = None) -> Ask:
        """A permission on something that is there; one that is not has no tags, and EC2 itself refuses it."""
        name, tags = self._look_up(kind, str(name))
        return self._ask(self._arn(kind, name), tag_context(requested=requested or {}, present=tags))

    def _ask_to_make(self, kind: str, name: str, more: Mapping[str, tuple[str, ...]] | None = None) -> Ask:
        given = tag_context(requested=self._given.get(kind, {}), present={})
        return self._ask(self._arn(kind, name), {**given, **(more or {})})

    def _ask_to_tag(self, kind: str, tags: Mapping[str, str]) -> Ask:
        """Tags at creation need the permission to tag as well."""
        made = CREATED.get(self._call.action, (None, None))[0]
        context = {**tag_context(requested=tags, present={}), "ec2:createaction": (self._call.action,)}
        resource = self._arn(kind, self._new_name() if kind == made else "*")
        return Ask(action="ec2:CreateTags", resource=resource, context={**self._context, **context})

    def _new_name(self) -> str:
        parameter = CREATED[self._call.action][1]
        return str(self._tree.get(parameter, "*")) if parameter else "*"

    def _arn(self, kind: str, name: str) -> str:
        if kind == "*":
            return "*"
        account = "" if kind in PUBLIC_KINDS else DEFAULT_ACCOUNT_ID
        return f"arn:aws:ec2:{self._call.region}:{account}:{kind}/{name}"

    def _look_up(self, kind: str, name: str) -> tuple[str, dict[str, str]]:
        """The name that stands in an ARN, and the tags, of something that was named in any way."""
        backend, resource_id = self._backend, name
        if kind == "security-group" and (group := backend.get_security_group_by_name_or_id(name)):
            name = resource_id = str(group.id)
        elif kind == "key-pair":
            pair = next((one for one in backend.key_pairs.values() if name in (one.key_name, one.id)), None)
            name, resource_id = (pair.key_name, pair.id) if pair else (name, name)
        elif kind == "placement-group":
            near = backend.placement_groups.find(name)
            name, resource_id = (near.name, near.id) if near else (name, name)
        return name, {str(key): str(value) for key, value in backend.tags.get(resource_id, {}).items()}

    def _default_subnet(self) -> str:
        """Where a launch goes that names no subnet: known beforehand if it names a zone."""
        subnets = self._backend.get_default_subnets()
        zone = self._tree.get("Placement", {}).get("AvailabilityZone")
        return str(subnets[zone].id) if zone in subnets else "*"

    def _default_group(self, subnet_id: str) -> str:
        """The group of instances that name none: the default one of their VPC."""
        vpc_id = next((one.vpc_id for one in self._backend.describe_subnets() if one.id == subnet_id), None)
        group = self._backend.get_default_security_group(vpc_id)
        return str(group.id) if group else "*"
