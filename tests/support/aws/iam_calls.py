"""The permissions that the calls in the sandbox's API log need, and which of them a policy does not allow.

Unknown actions need permission on "*".

https://docs.aws.amazon.com/service-authorization/latest/reference/reference_policies_actions-resources-contextkeys.html
https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import boto3
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE

from iam_evaluator import Ask, decide, parse_policy
from sandbox import control

ACCOUNT = "123456789012"
DEFAULT_INSTANCE_TYPE = "m1.small"
ALWAYS_ALLOWED = (("sts", "GetCallerIdentity"), ("sts", "GetSessionToken"))
Entry = Mapping[str, Any]
"""A line of the API log."""
Tree = Mapping[str, Any]
"""The parameters of a query protocol call: `A.1.B=c` is {"A": {"1": {"B": "c"}}}."""

# S3 operations whose permission has a different name.
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/using-with-s3-policy-actions.html
S3_ACTIONS = {
    "ListBuckets": "ListAllMyBuckets", "HeadBucket": "ListBucket", "ListObjects": "ListBucket",
    "ListObjectsV2": "ListBucket", "ListMultipartUploads": "ListBucketMultipartUploads", "HeadObject": "GetObject",
    "CopyObject": "PutObject", "CreateMultipartUpload": "PutObject", "UploadPart": "PutObject",
    "UploadPartCopy": "PutObject", "CompleteMultipartUpload": "PutObject", "ListParts": "ListMultipartUploadParts",
    "DeleteObjects": "DeleteObject", "GetBucketLifecycleConfiguration": "GetLifecycleConfiguration",
    "PutBucketLifecycleConfiguration": "PutLifecycleConfiguration",
    "PutBucketEncryption": "PutEncryptionConfiguration", "GetBucketEncryption": "GetEncryptionConfiguration",
    "PutPublicAccessBlock": "PutBucketPublicAccessBlock", "GetPublicAccessBlock": "GetBucketPublicAccessBlock",
}  # fmt: skip
WITH_PREFIX = ("ListBucket",)
OF_A_VERSION = ("GetObject", "DeleteObject")

# The parameters of IAM calls that name the resource. The first one in a call counts.
IAM_NAMED = {"InstanceProfileName": "instance-profile", "RoleName": "role", "UserName": "user", "GroupName": "group",
             "PolicyName": "policy"}  # fmt: skip

# Parameters of EC2 calls that name resources, and the kinds of the resources.
NAMED = {
    "InstanceId": "instance", "GroupId": "security-group", "KeyName": "key-pair", "KeyPairId": "key-pair",
    "VolumeId": "volume", "NetworkInterfaceId": "network-interface", "SubnetId": "subnet", "VpcId": "vpc",
    "ImageId": "image", "AllocationId": "elastic-ip", "SpotInstanceRequestId": "spot-instances-request",
}  # fmt: skip
# The kind of resource that an action creates, and the parameter with its name if the ARN contains a name.
CREATED: dict[str, tuple[str, str | None]] = {
    "CreateSecurityGroup": ("security-group", None), "ImportKeyPair": ("key-pair", "KeyName"),
    "CreatePlacementGroup": ("placement-group", "GroupName"), "CreateVolume": ("volume", None),
}  # fmt: skip
TAGGING = ("CreateTags", "DeleteTags")
PUBLIC_KINDS = ("image",)  # its ARN has no account


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """The resources that exist while calls are made. tags: by id. ids: by (kind, name). owners: of images."""

    tags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    ids: Mapping[tuple[str, str], str] = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)

    def __or__(self, other: "Resources") -> "Resources":
        return Resources(
            tags={**self.tags, **other.tags}, ids={**self.ids, **other.ids}, owners={**self.owners, **other.owners}
        )


def read_log(project_dir: Path) -> list[dict[str, Any]]:
    """The lines of a sandbox's API log."""
    return [json.loads(line) for line in control.api_log(project_dir).read_text().splitlines()]


def list_resources(region: str = "us-east-1") -> Resources:
    """What AWS has now. Add what it has later, and earlier, by `|`."""
    ec2 = boto3.client("ec2", region_name=region)
    tags: dict[str, dict[str, str]] = {}
    for one in ec2.get_paginator("describe_tags").paginate():
        for tag in one["Tags"]:
            tags.setdefault(tag["ResourceId"], {})[tag["Key"]] = tag["Value"]
    groups = ec2.describe_security_groups()["SecurityGroups"]
    pairs = ec2.describe_key_pairs()["KeyPairs"]
    near = ec2.describe_placement_groups()["PlacementGroups"]
    images = ec2.describe_images()["Images"]
    return Resources(
        tags=tags,
        ids={
            **{("security-group", one["GroupName"]): one["GroupId"] for one in groups},
            **{("key-pair", one["KeyName"]): one["KeyPairId"] for one in pairs},
            **{("placement-group", one["GroupName"]): one["GroupId"] for one in near},
        },
        owners={one["ImageId"]: one.get("ImageOwnerAlias") or one["OwnerId"] for one in images},
    )


def find_denied(entries: Iterable[Entry], policy: str, resources: Resources | None = None) -> set[str]:
    """The permissions that calls needed and that a policy does not grant: "ec2:RunInstances on ARN"."""
    parsed = [parse_policy(policy)]
    return {
        f"{ask.action} on {ask.resource}"
        for entry in entries
        for ask in describe_asks(entry, resources or Resources())
        if decide(parsed, ask) != "allowed"
    }


def describe_asks(entry: Entry, resources: Resources) -> Iterator[Ask]:
    """Yields all permissions that a call needs."""
    service, action = entry["service"], entry["action"]
    context = {"aws:requestedregion": (entry["region"] or "",), "aws:securetransport": ("true",)}
    if (service, action) in ALWAYS_ALLOWED:
        return
    if service == "s3":
        yield from _describe_s3(entry, context)
        return
    if service == "ssm":
        for arn in _parameters(entry):
            yield Ask(action=f"ssm:{action}", resource=arn, context=context)
        return
    tree = read_tree(entry["parameters"])
    if service == "ec2":
        yield from Ec2Asks(entry, tree, context, resources).describe()
    elif service == "iam":
        yield from _describe_iam(action, tree, context)
    else:
        yield Ask(
            action=f"{service}:{action}", resource=_sts_resource(tree) if service == "sts" else "*", context=context
        )


def _sts_resource(tree: Tree) -> str:
    if "Name" in tree:
        return f"arn:aws:sts::{ACCOUNT}:federated-user/{tree['Name']}"
    return str(tree.get("RoleArn", "*"))


def _describe_s3(entry: Entry, context: Mapping[str, tuple[str, ...]]) -> Iterator[Ask]:
    given = entry["parameters"]
    bucket, _, key = entry["resource"].partition("/")
    action = S3_ACTIONS.get(entry["action"], entry["action"])
    if action in OF_A_VERSION and "versionId" in given:
        action += "Version"
    if action in WITH_PREFIX and "prefix" in given:
        context = {**context, "s3:prefix": (given["prefix"],)}
    key = "*" if entry["action"] == "DeleteObjects" else key  # the log does not have the body
    arn = f"arn:aws:s3:::{bucket}/{key}" if key else f"arn:aws:s3:::{bucket}" if bucket else "*"
    yield Ask(action=f"s3:{action}", resource=arn, context=context)
    if "copied" in given:
        path = unquote(given["copied"]).lstrip("/").partition("?")[0]
        yield Ask(action="s3:GetObject", resource=f"arn:aws:s3:::{path}", context=context)


def _describe_iam(action: str, tree: Tree, context: Mapping[str, tuple[str, ...]]) -> Iterator[Ask]:
    requested = tag_context(requested=read_tags(tree.get("Tags", {}).get("member", {})), present={})
    service = tree.get("AWSServiceName")
    named = next((name for name in IAM_NAMED if name in tree), None)
    if service is not None:
        arn = _iam_arn("role", f"aws-service-role/{service}/*")
        requested["iam:awsservicename"] = (service,)
    elif "PolicyArn" in tree and named is None:
        arn = tree["PolicyArn"]
    else:
        arn = _iam_arn(IAM_NAMED[named], tree[named]) if named is not None else "*"
    yield Ask(action=f"iam:{action}", resource=arn, context={**context, **requested})
    if action == "AddRoleToInstanceProfile":
        yield _ask_to_pass(tree["RoleName"], context)


def _ask_to_pass(role: str, context: Mapping[str, tuple[str, ...]]) -> Ask:
    passed = {**context, "iam:passedtoservice": ("ec2.amazonaws.com",)}
    return Ask(action="iam:PassRole", resource=_iam_arn("role", role), context=passed)


def _iam_arn(kind: str, name: str) -> str:
    return f"arn:aws:iam::{ACCOUNT}:{kind}/{name}"


def _parameters(entry: Entry) -> Iterator[str]:
    """Yields the ARNs of the SSM parameters that a call names. AWS's public parameters have no account."""
    given = entry["parameters"]
    named = [name for name in (given.get("Name") or given.get("Path"), *given.get("Names", [])) if name]
    for name in named:
        path = re.sub(r"^arn:[^/]*:parameter|:[^:/]*$", "", name)  # with or without a version or a label
        account = "" if path.startswith("/aws/") else ACCOUNT
        yield f"arn:aws:ssm:{entry['region']}:{account}:parameter/{path.lstrip('/')}"
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
            below = below.setdefault(part, {})
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
    """The permissions that an EC2 call needs."""

    def __init__(self, entry: Entry, tree: Tree, context: Mapping[str, tuple[str, ...]], resources: Resources) -> None:
        self._action, self._region = entry["action"], entry["region"]
        self._resources = resources
        self._tree = tree
        self._context = {**context, "ec2:region": (self._region,)}
        specifications = [one for one in read_list(tree.get("TagSpecification")) if isinstance(one, Mapping)]
        self._given = {str(one.get("ResourceType", "")): read_tags(one.get("Tag")) for one in specifications}

    def describe(self) -> Iterator[Ask]:
        """Yields all permissions that the call needs."""
        action = self._action
        if action.startswith("Describe"):
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
        kind, name_parameter = CREATED.get(self._action, (None, None))
        asks = []
        if kind is not None:
            asks.append(self._ask_to_make(kind, self._new_name()))
        for parameter, named in NAMED.items():
            if parameter != name_parameter:
                asks += [self._ask_of(named, name) for name in read_list(self._tree.get(parameter))]
        # If the call creates a group, GroupName is the name of the new group.
        if kind is None and "GroupName" in self._tree:
            named = "security-group" if "SecurityGroup" in self._action else "placement-group"
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
        yield self._ask_of("subnet", next((str(one) for one in subnets if one), "*"))
        groups = read_list(self._tree.get("SecurityGroupId")) + read_list(self._tree.get("SecurityGroup"))
        for nic in nics:
            groups += read_list(nic.get("SecurityGroupId"))
        for group in groups or ["*"]:
            yield self._ask_of("security-group", group)
        if "KeyName" in self._tree:
            yield self._ask_of("key-pair", str(self._tree["KeyName"]))
        placement = self._tree.get("Placement", {})
        if name := placement.get("GroupName") or placement.get("GroupId"):
            yield self._ask_of("placement-group", name)
        yield from self._ask_for_role()

    def _ask_for_role(self) -> Iterator[Ask]:
        """Yields the permission to pass an instance profile's role, which has the profile's name, to EC2."""
        asked = self._tree.get("IamInstanceProfile", {})
        if name := asked.get("Name") or asked.get("Arn", "").rpartition("/")[2]:
            yield _ask_to_pass(name, self._context)

    def _ask(self, resource: str, context: Mapping[str, tuple[str, ...]] | None = None) -> Ask:
        return Ask(action=f"ec2:{self._action}", resource=resource, context={**self._context, **(context or {})})

    def _ask_of(self, kind: str, name: Any, *, requested: Mapping[str, str] | None = None) -> Ask:
        """Returns the permission on an existing resource. EC2 itself refuses an unknown resource."""
        name, tags = self._look_up(kind, str(name))
        context = tag_context(requested=requested or {}, present=tags)
        if kind == "image" and name in self._resources.owners:
            context["ec2:owner"] = (self._resources.owners[name],)
        return self._ask(self._arn(kind, name), context)

    def _ask_to_make(self, kind: str, name: str, more: Mapping[str, tuple[str, ...]] | None = None) -> Ask:
        given = tag_context(requested=self._given.get(kind, {}), present={})
        return self._ask(self._arn(kind, name), {**given, **(more or {})})

    def _ask_to_tag(self, kind: str, tags: Mapping[str, str]) -> Ask:
        """Returns the permission for tags at creation, which also need ec2:CreateTags."""
        made = CREATED.get(self._action, (None, None))[0]
        context = {**tag_context(requested=tags, present={}), "ec2:createaction": (self._action,)}
        resource = self._arn(kind, self._new_name() if kind == made else "*")
        return Ask(action="ec2:CreateTags", resource=resource, context={**self._context, **context})

    def _new_name(self) -> str:
        parameter = CREATED[self._action][1]
        return str(self._tree.get(parameter, "*")) if parameter else "*"

    def _arn(self, kind: str, name: str) -> str:
        if kind == "*":
            return "*"
        account = "" if kind in PUBLIC_KINDS else ACCOUNT
        return f"arn:aws:ec2:{self._region}:{account}:{kind}/{name}"

    def _look_up(self, kind: str, name: str) -> tuple[str, Mapping[str, str]]:
        """Returns a resource's name in its ARN, and its tags. name: its name or its id."""
        ids = self._resources.ids
        resource_id = ids.get((kind, name), name)
        if kind == "security-group":
            name = resource_id
        elif kind in ("key-pair", "placement-group"):
            name = next((known for (of, known), one in ids.items() if of == kind and one == name), name)
        return name, self._resources.tags.get(resource_id, {})
