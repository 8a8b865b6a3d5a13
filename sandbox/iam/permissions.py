"""The permissions that a call needs: IAM's action, the resources, and the values of condition keys.

Unknown actions need permission on "*".

https://docs.aws.amazon.com/service-authorization/latest/reference/reference_policies_actions-resources-contextkeys.html
https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote
from xml.etree import ElementTree as ET

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE
from moto.iam.models import IAMBackend, iam_backends

from sandbox.api.ec2 import DEFAULT_INSTANCE_TYPE, SandboxEC2Backend
from sandbox.iam.policies import Ask

Context = Mapping[str, tuple[str, ...]]
Tree = Mapping[str, Any]
"""The parameters of a query protocol call: `A.1.B=c` is {"A": {"1": {"B": "c"}}}."""

# S3 operations whose permission has a different name.
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/using-with-s3-policy-actions.html
S3_ACTIONS = {
    "ListBuckets": "ListAllMyBuckets", "HeadBucket": "ListBucket", "ListObjects": "ListBucket",
    "ListObjectsV2": "ListBucket", "ListObjectVersions": "ListBucketVersions",
    "ListMultipartUploads": "ListBucketMultipartUploads", "HeadObject": "GetObject", "PostObject": "PutObject",
    "CopyObject": "PutObject", "CreateMultipartUpload": "PutObject", "UploadPart": "PutObject",
    "UploadPartCopy": "PutObject", "CompleteMultipartUpload": "PutObject", "ListParts": "ListMultipartUploadParts",
    "DeleteObjects": "DeleteObject", "GetBucketEncryption": "GetEncryptionConfiguration",
    "PutBucketEncryption": "PutEncryptionConfiguration", "DeleteBucketEncryption": "PutEncryptionConfiguration",
    "GetBucketLifecycleConfiguration": "GetLifecycleConfiguration",
    "PutBucketLifecycleConfiguration": "PutLifecycleConfiguration",
    "DeleteBucketLifecycle": "PutLifecycleConfiguration", "GetPublicAccessBlock": "GetBucketPublicAccessBlock",
    "PutPublicAccessBlock": "PutBucketPublicAccessBlock", "DeletePublicAccessBlock": "PutBucketPublicAccessBlock",
    "GetBucketCors": "GetBucketCORS", "PutBucketCors": "PutBucketCORS", "DeleteBucketCors": "PutBucketCORS",
    "DeleteBucketTagging": "PutBucketTagging", "DeleteBucketOwnershipControls": "PutBucketOwnershipControls",
}  # fmt: skip
WITH_PREFIX = ("ListBucket", "ListBucketVersions")
OF_A_VERSION = ("GetObject", "DeleteObject")

# The parameters of IAM calls that name the resource. The first one in a call counts.
IAM_NAMED = {"InstanceProfileName": "instance-profile", "RoleName": "role", "UserName": "user", "GroupName": "group",
             "PolicyName": "policy"}  # fmt: skip
IAM_ARNS = ("PolicySourceArn", "PolicyArn")

# Parameters of EC2 calls that name resources, and the kinds of the resources.
NAMED = {
    "InstanceId": "instance", "GroupId": "security-group", "KeyName": "key-pair", "KeyPairId": "key-pair",
    "VolumeId": "volume", "NetworkInterfaceId": "network-interface", "SubnetId": "subnet", "VpcId": "vpc",
    "ImageId": "image", "SnapshotId": "snapshot", "AllocationId": "elastic-ip", "LaunchTemplateId": "launch-template",
    "SpotInstanceRequestId": "spot-instances-request", "SecurityGroupRuleId": "security-group-rule",
}  # fmt: skip
# The kind of resource that an action creates, and the parameter with its name if the ARN contains a name.
CREATED: dict[str, tuple[str, str | None]] = {
    "CreateSecurityGroup": ("security-group", None), "ImportKeyPair": ("key-pair", "KeyName"),
    "CreateKeyPair": ("key-pair", "KeyName"), "CreatePlacementGroup": ("placement-group", "GroupName"),
    "CreateVolume": ("volume", None), "CreateNetworkInterface": ("network-interface", None),
    "CreateSubnet": ("subnet", None), "CreateVpc": ("vpc", None), "CreateSnapshot": ("snapshot", None),
    "CreateLaunchTemplate": ("launch-template", None), "AllocateAddress": ("elastic-ip", None),
    "CreateImage": ("image", None),
}  # fmt: skip
# Describe actions do not have resources, except these.
READ_OF_RESOURCES = ("DescribeInstanceAttribute",)
TAGGING = ("CreateTags", "DeleteTags")
PUBLIC_KINDS = ("image", "snapshot")  # their ARNs have no account


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """The parts of a call on which permissions depend.

    tree: the parameters in the query protocol. document: the parameters in the JSON protocol. For S3: path, query,
    source (the header x-amz-copy-source) and body (only of DeleteObjects).
    """

    service: str
    action: str
    region: str
    tree: Tree = field(default_factory=dict)
    document: Mapping[str, Any] = field(default_factory=dict)
    path: str = ""
    query: str = ""
    source: str = ""
    body: bytes = b""

    @property
    def context(self) -> dict[str, tuple[str, ...]]:
        """The condition keys of every call."""
        return {"aws:requestedregion": (self.region,), "aws:securetransport": ("true",)}


def describe_asks(call: Call) -> Iterator[Ask]:
    """Yields all permissions that a call needs, for any service except EC2."""
    if call.service == "s3":
        yield from _describe_s3(call)
    elif call.service == "iam":
        yield from _describe_iam(call, iam_backends[DEFAULT_ACCOUNT_ID]["aws"])
    elif call.service == "ssm":
        for arn in _parameters(call):
            yield Ask(action=f"ssm:{call.action}", resource=arn, context=call.context)
    else:
        resource = _sts_resource(call) if call.service == "sts" else "*"
        yield Ask(action=f"{call.service}:{call.action}", resource=resource, context=call.context)


def _sts_resource(call: Call) -> str:
    """Returns the ARN of the role to assume, or of the federated user to create."""
    if call.action == "GetFederationToken":
        return f"arn:aws:sts::{DEFAULT_ACCOUNT_ID}:federated-user/{call.tree.get('Name', '')}"
    return str(call.tree.get("RoleArn", "*"))


# --- S3


def _describe_s3(call: Call) -> Iterator[Ask]:
    asked = parse_qs(call.query, keep_blank_values=True)
    bucket, _, key = call.path.lstrip("/").partition("/")
    action = S3_ACTIONS.get(call.action, call.action)
    if action in OF_A_VERSION and "versionId" in asked:
        action += "Version"
    context = call.context
    if action in WITH_PREFIX and "prefix" in asked:
        context["s3:prefix"] = (asked["prefix"][0],)
    names = _keys_of(call.body) if call.action == "DeleteObjects" else [key]
    for name in names:
        yield Ask(action=f"s3:{action}", resource=s3_arn(bucket, name), context=context)
    if call.source:
        path, _, version = unquote(call.source).lstrip("/").partition("?versionId=")
        read = "s3:GetObjectVersion" if version else "s3:GetObject"
        yield Ask(action=read, resource=f"arn:aws:s3:::{path}", context=call.context)


def s3_arn(bucket: str, key: str = "") -> str:
    """Returns the ARN of a bucket or of an object in it, or "*" without a bucket. Pure."""
    if not bucket:
        return "*"
    return f"arn:aws:s3:::{bucket}/{key}" if key else f"arn:aws:s3:::{bucket}"


def _keys_of(body: bytes) -> list[str]:
    """Returns the keys in the body of DeleteObjects, or [""] if it is not XML, which S3 refuses."""
    try:
        root = ET.fromstring(body)  # noqa: S314 -- from the sandbox's own user, and expat limits entities
    except ET.ParseError:
        return [""]
    return [element.text or "" for element in root.iter() if element.tag.rpartition("}")[2] == "Key"]


# --- IAM and SSM


def _describe_iam(call: Call, iam: IAMBackend) -> Iterator[Ask]:
    given = read_tags(call.tree.get("Tags", {}).get("member", {}))
    arn, tags = _find_iam_resource(call, iam)
    context = {**call.context, **tag_context(requested=given, present=tags)}
    if "AWSServiceName" in call.tree:
        context["iam:awsservicename"] = (str(call.tree["AWSServiceName"]),)
    yield Ask(action=f"iam:{call.action}", resource=arn, context=context)
    if call.action == "AddRoleToInstanceProfile":
        name = str(call.tree.get("RoleName", ""))
        role = next((role for role in list(iam.get_roles()) if role.name == name), None)
        yield _ask_to_pass(call, role.arn if role else _iam_arn("role", name))


def _ask_to_pass(call: Call, role_arn: str) -> Ask:
    """Returns the permission to pass a role to EC2."""
    context = {**call.context, "iam:passedtoservice": ("ec2.amazonaws.com",)}
    return Ask(action="iam:PassRole", resource=role_arn, context=context)


def _iam_arn(kind: str, name: str, path: str = "/") -> str:
    return f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:{kind}{path}{name}"


def _find_iam_resource(call: Call, iam: IAMBackend) -> tuple[str, Mapping[str, str]]:
    """Returns the ARN and the tags of a call's resource."""
    if call.action == "CreateServiceLinkedRole":
        service = str(call.tree.get("AWSServiceName", ""))
        return _iam_arn("role", "*", f"/aws-service-role/{service}/"), {}
    for parameter in IAM_ARNS:
        if parameter in call.tree and "RoleName" not in call.tree and "UserName" not in call.tree:
            return str(call.tree[parameter]), {}
    naming = next((name for name in IAM_NAMED if name in call.tree), None)
    if naming is None:
        return "*", {}
    kind, name = IAM_NAMED[naming], str(call.tree[naming])
    kept: dict[str, Iterable[Any]] = {"role": iam.get_roles(), "instance-profile": iam.get_instance_profiles()}
    found = next((one for one in list(kept.get(kind, ())) if one.name == name), None)
    if found is None:
        return _iam_arn(kind, name, str(call.tree.get("Path", "/"))), {}
    tags = found.tags.values() if isinstance(found.tags, dict) else found.tags
    return str(found.arn), {tag["Key"]: tag["Value"] for tag in tags}


def _parameters(call: Call) -> Iterator[str]:
    """Yields the ARNs of the SSM parameters that a call names. AWS's public parameters have no account."""
    names = [call.document.get("Name") or call.document.get("Path"), *call.document.get("Names", [])]
    named = [name for name in names if isinstance(name, str)]
    for name in named:
        path = re.sub(r"^arn:[^/]*:parameter|:[^:/]*$", "", name)  # with or without a version or a label
        account = "" if path.startswith("/aws/") else DEFAULT_ACCOUNT_ID
        yield f"arn:aws:ssm:{call.region}:{account}:parameter/{path.lstrip('/')}"
    if not named:
        yield "*"


# --- the query protocol


def read_tree(form: Mapping[str, str]) -> Tree:
    """Returns the parameters of a form, nested by the dots in their names. Pure."""
    tree: dict[str, Any] = {}
    for name, value in form.items():
        *above, last = name.split(".")
        below = tree
        for part in above:
            following = below.setdefault(part, {})
            if not isinstance(following, dict):
                break  # both `A=1` and `A.1=2`: moto refuses it
            below = following
        else:
            below[last] = value
    return tree


def read_list(found: Any) -> list[Any]:
    """Returns the entries of a list in a tree, in order. A single value is a list with one entry. Pure."""
    if isinstance(found, Mapping):
        numbered = sorted((int(number), value) for number, value in found.items() if number.isdecimal())
        return [value for _, value in numbered]
    return [] if found is None else [found]


def read_tags(found: Any) -> dict[str, str]:
    """Returns the tags in a list of `Key` and `Value` pairs. Pure."""
    return {str(tag.get("Key", "")): str(tag.get("Value", "")) for tag in read_list(found) if isinstance(tag, Mapping)}


def tag_context(*, requested: Mapping[str, str], present: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Returns the condition keys for the tags that a call sets, and for the tags of its resource. Pure."""
    context: dict[str, tuple[str, ...]] = {
        f"aws:requesttag/{key.lower()}": (value,) for key, value in requested.items()
    }
    for key, value in present.items():
        for prefix in ("aws:resourcetag/", "ec2:resourcetag/"):
            context[f"{prefix}{key.lower()}"] = (value,)
    if requested:
        context["aws:tagkeys"] = tuple(requested)
    return context


# --- EC2


class Ec2Asks:
    """The permissions that an EC2 call needs. Use it under EC2's lock."""

    def __init__(self, call: Call, backend: SandboxEC2Backend) -> None:
        self._call = call
        self._backend = backend
        self._tree = call.tree
        self._context = {**call.context, "ec2:region": (call.region,)}
        specifications = [one for one in read_list(call.tree.get("TagSpecification")) if isinstance(one, Mapping)]
        self._given = {str(one.get("ResourceType", "")): read_tags(one.get("Tag")) for one in specifications}

    def describe(self) -> Iterator[Ask]:
        """Yields all permissions that the call needs."""
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
        # If the call creates a group, GroupName is the name of the new group.
        if kind is None and "GroupName" in self._tree:
            named = "security-group" if "SecurityGroup" in self._call.action else "placement-group"
            asks += [self._ask_of(named, name) for name in read_list(self._tree["GroupName"])]
        yield from asks or [self._ask("*")]
        yield from self._ask_for_role()

    def _describe_launch(self) -> Iterator[Ask]:
        """Yields the permissions for RunInstances: on each resource that it creates or uses."""
        instance_type = str(self._tree.get("InstanceType", DEFAULT_INSTANCE_TYPE))
        market = str(self._tree.get("InstanceMarketOptions", {}).get("MarketType", "on-demand"))
        placed = {"ec2:instancetype": (instance_type,), "ec2:instancemarkettype": (market,)}
        yield self._ask_to_make("instance", "*", placed)
        yield self._ask_to_make("volume", "*")
        yield self._ask_to_make("network-interface", "*")
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
        """Yields the permission to pass an instance profile's role to EC2. EC2 itself refuses an unknown profile."""
        asked = self._tree.get("IamInstanceProfile", {})
        for profile in list(iam_backends[DEFAULT_ACCOUNT_ID]["aws"].get_instance_profiles()):
            if profile.name == asked.get("Name") or profile.arn == asked.get("Arn"):
                for role in profile.roles:
                    yield _ask_to_pass(self._call, role.arn)

    def _ask(self, resource: str, context: Mapping[str, tuple[str, ...]] | None = None) -> Ask:
        return Ask(action=f"ec2:{self._call.action}", resource=resource, context={**self._context, **(context or {})})

    def _ask_of(self, kind: str, name: Any, *, requested: Mapping[str, str] | None = None) -> Ask:
        """Returns the permission on an existing resource. EC2 itself refuses an unknown resource."""
        name, tags = self._look_up(kind, str(name))
        context = tag_context(requested=requested or {}, present=tags)
        if kind == "image" and (image := self._backend.amis.get(name)):
            context["ec2:owner"] = (str(image.owner_alias or image.owner_id),)
        return self._ask(self._arn(kind, name), context)

    def _ask_to_make(self, kind: str, name: str, more: Mapping[str, tuple[str, ...]] | None = None) -> Ask:
        given = tag_context(requested=self._given.get(kind, {}), present={})
        return self._ask(self._arn(kind, name), {**given, **(more or {})})

    def _ask_to_tag(self, kind: str, tags: Mapping[str, str]) -> Ask:
        """Returns the permission for tags at creation, which also need ec2:CreateTags."""
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
        """Returns a resource's name in its ARN, and its tags. name: its name or its id."""
        backend, resource_id = self._backend, name
        if kind == "security-group" and (group := backend.get_security_group_by_name_or_id(name)):
            name = resource_id = str(group.id)
        elif kind == "key-pair":
            pair = next((one for one in backend.key_pairs.values() if name in (one.key_name, one.id)), None)
            name, resource_id = (pair.key_name, pair.id) if pair else (name, name)
        elif kind == "placement-group" and (near := backend.placement_groups.find(name)):
            name, resource_id = near.group_name, near.id
        return name, {str(key): str(value) for key, value in backend.tags.get(resource_id, {}).items()}

    def _default_subnet(self) -> str:
        """Returns the subnet of a launch that does not name one, or "*" unless the launch names a zone."""
        subnets = self._backend.get_default_subnets()
        zone = self._tree.get("Placement", {}).get("AvailabilityZone")
        return str(subnets[zone].id) if zone in subnets else "*"

    def _default_group(self, subnet_id: str) -> str:
        """Returns the group of a launch that does not name one: the default group of its VPC."""
        vpc_id = next((one.vpc_id for one in self._backend.describe_subnets() if one.id == subnet_id), None)
        group = self._backend.get_default_security_group(vpc_id)
        return str(group.id) if group else "*"
