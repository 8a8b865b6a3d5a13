"""The operator's policy: the least permissions that this program's user needs in AWS. Pure.

The resources and condition keys of each action are in the Service Authorization Reference, below
https://docs.aws.amazon.com/service-authorization/latest/reference/: list_amazonec2.html, list_amazons3.html,
list_awsidentityandaccessmanagementiam.html, list_servicequotas.html (where a quota is not a required resource),
list_awspricelist.html.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from provision.aws.iam_policy import Keys, Statement, allow, allow_passing, partition_of, render_document
from provision.config import ProvisionConfig, all_regions
from provision.model import TAG_KEEP, TAG_LEASE, TAG_NAME, bake_name, federated_name, profile_name, resource_name
from provision.resources.table import KINDS
from provision.volumes.config import VolumeConfig, find_head_volume

MAX_POLICY_LENGTH = 6144
"""The maximum length of a customer managed policy in characters, without white space
(https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html)."""

_LOOKS = (
    "ec2:DescribeCapacityReservations",
    "ec2:DescribeImages",
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeRouteTables",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeSubnets",
)
"""Reads other than those of the cluster's resources. Not ec2:Describe*: DescribeInstanceAttribute, for example, shows
the user data of all instances."""
_CREATIONS = ("Create", "Import", "Run")
_OF_IMAGES = ("CreateImage", "DeleteSnapshot", "DeregisterImage")

_ROLE_LOOKS = ("iam:GetInstanceProfile", "iam:GetRole", "iam:GetRolePolicy")
_ROLE_CHANGES = (
    "iam:AddRoleToInstanceProfile",
    "iam:CreateInstanceProfile",
    "iam:CreateRole",
    "iam:DeleteInstanceProfile",
    "iam:DeleteRole",
    "iam:DeleteRolePolicy",
    "iam:PutRolePolicy",
    "iam:RemoveRoleFromInstanceProfile",
    "iam:TagInstanceProfile",
    "iam:TagRole",
)
_SPOT_SERVICE = "spot.amazonaws.com"

Condition = Mapping[str, Mapping[str, Any]]


def render_operator_policy(
    config: ProvisionConfig,
    *,
    name: str | None,
    data_url: str | None,
    results_url: str | None,
    volumes: Sequence[VolumeConfig] = (),
) -> str:
    """Returns the permissions that all commands of this program need, as JSON: no longer than MAX_POLICY_LENGTH.

    name: the cluster's; None: all clusters of the region. The buckets are those of the URLs. sts:GetCallerIdentity and
    sts:GetSessionToken need no permission. Raises ConfigError for a URL with special characters of IAM.
    """
    scope = _Scope(name=name, regions=all_regions(config))
    return render_document(
        [
            *map(scope.limit, _ec2_statements(scope, config)),
            allow("FindQuotasAndPrices", ["pricing:GetProducts", "servicequotas:GetServiceQuota"], ["*"]),
            *map(scope.limit, _volume_statements(scope, volumes)),
            *_iam_statements(scope, config),
            *_job_statements(scope, config),
            *_bucket_statements(
                scope,
                {
                    "[data] url": data_url,
                    "[data] results": results_url,
                    **{f"{volume.mount} of [[volumes]]": volume.source for volume in volumes if volume.kind == "s3"},
                },
            ),
        ]
    )


class _Scope(Struct, frozen=True, kw_only=True):
    """The cluster, or all clusters, of an operator. regions: those where it may be; not empty."""

    name: str | None
    regions: tuple[str, ...]

    @property
    def region(self) -> str:
        """The region in ARNs: `*` for several regions, which `here` limits."""
        return self.regions[0] if len(self.regions) == 1 else "*"

    @property
    def partition(self) -> str:
        return partition_of(self.regions[0])

    @property
    def here(self) -> Condition:
        """The condition that a call is in one of the regions."""
        return {"StringEquals": {"aws:RequestedRegion": self.regions[0] if len(self.regions) == 1 else [*self.regions]}}

    def limit(self, statement: Statement) -> Statement:
        """Returns a statement whose ARNs have the region; with several regions, limits it to them."""
        if len(self.regions) == 1 or statement.get("Condition", {}).get("StringEquals", {}).get("aws:RequestedRegion"):
            return statement
        return {**statement, "Condition": _both(statement.get("Condition", {}), self.here)}

    @property
    def resource_name(self) -> str:
        return resource_name(self.name or "*")

    @property
    def names(self) -> list[str]:
        """The names of the cluster and of the temporary one whose instance becomes its image."""
        return ["*"] if self.name is None else [self.name, bake_name(self.name)]

    @property
    def profile_name(self) -> str:
        return profile_name(self.name or "*", region=self.region)

    def ec2(self, *resources: str) -> list[str]:
        return [f"arn:{self.partition}:ec2:{self.region}:*:{one}" for one in resources]

    def iam(self, resource: str) -> str:
        return f"arn:{self.partition}:iam::*:{resource}"

    def tagged(self, kind: str) -> Condition:
        """Returns the condition that a resource belongs to the cluster. kind: RequestTag or ResourceTag."""
        key = f"aws:{kind}/{TAG_NAME}"
        return {"StringLike": {key: "*"}} if self.name is None else {"StringEquals": {key: self.names}}


def _actions(*verbs: str) -> list[str]:
    """Returns the EC2 actions on the cluster's resources that begin with one of the verbs; without verbs, all."""
    known = {*_OF_IMAGES, *(action for kind in KINDS for action in kind.all_actions)}
    return sorted(f"ec2:{action}" for action in known if action.startswith(verbs or ""))


def _ec2_statements(scope: _Scope, config: ProvisionConfig) -> list[Statement]:
    """Allows creating and changing only resources that carry the cluster's tag.

    A launch also uses an image, a subnet and, in the dry run before the cluster's group exists, the VPC's default
    group. A spot request that RunInstances makes has no condition keys.
    """
    image = f"arn:{scope.partition}:ec2:{scope.region}::image/*"
    requests = ("spot-instances-request/*",) if "spot" in config.market else ()
    if config.reservation != "none":
        requests = (*requests, f"capacity-reservation/{config.reservation}")
    # Names instead of tags, so that dry runs work before the resource exists.
    named = (f"placement-group/{scope.resource_name}", *(f"key-pair/{resource_name(name)}" for name in scope.names))
    used = scope.ec2("security-group/*", "subnet/*", *named, *requests)
    launched = ("instance/*", "network-interface/*", "volume/*")
    created = scope.ec2(*launched, "security-group/*", "image/*", "snapshot/*", *named)
    at_creation: Condition = {
        "StringEquals": {"ec2:CreateAction": [action.removeprefix("ec2:") for action in _actions(*_CREATIONS)]}
    }
    theirs = scope.tagged("RequestTag")
    ours = scope.tagged("ResourceTag")
    lease = _both(ours, _tag_alone(TAG_LEASE))
    changes = [action for action in _actions() if action not in _actions("Describe", *_CREATIONS)]
    changes.append("ec2:CreateImage")  # the instance that it is made of
    return [
        allow("Look", sorted([*_LOOKS, *_actions("Describe")]), ["*"], scope.here),
        allow("LaunchWith", ["ec2:RunInstances"], [image, *used]),
        allow("MakeGroupIn", ["ec2:CreateSecurityGroup"], scope.ec2("vpc/*")),
        allow("MakeTagged", _actions(*_CREATIONS), created, theirs),
        allow("TagWhatIsMade", ["ec2:CreateTags"], scope.ec2("*"), _both(theirs, at_creation)),
        allow("SetLease", ["ec2:CreateTags"], scope.ec2("instance/*", "security-group/*"), lease),
        allow("ChangeTagged", changes, scope.ec2("*"), ours),
    ]


def _volume_statements(scope: _Scope, volumes: Sequence[VolumeConfig]) -> list[Statement]:
    """Allows marking the head's volume as kept. EFS and FSx are only read."""
    statements: list[Statement] = []
    if find_head_volume(volumes) is not None:
        ours = scope.tagged("ResourceTag")
        keep = _both(ours, _tag_alone(TAG_KEEP))
        statements.append(allow("KeepVolume", ["ec2:CreateTags"], scope.ec2("volume/*"), keep))
    if any(volume.kind == "file-system" for volume in volumes):
        looks = ["elasticfilesystem:DescribeFileSystems", "fsx:DescribeFileSystems"]
        statements.append(allow("FindFileSystems", looks, ["*"], scope.here))
    return statements


def _iam_statements(scope: _Scope, config: ProvisionConfig) -> list[Statement]:
    """Allows managing the nodes' role. `down` looks for the role even if cluster.toml no longer asks for one."""
    profile = scope.iam(f"instance-profile/{scope.profile_name}")
    role = scope.iam(f"role/{scope.profile_name}")
    statements = [allow("LookForRole", _ROLE_LOOKS, [profile, role])]
    if "spot" in config.market:
        # The first spot request of an account creates this role.
        linked = scope.iam(f"role/aws-service-role/{_SPOT_SERVICE}/AWSServiceRoleForEC2Spot")
        for_spot: Condition = {"StringEquals": {"iam:AWSServiceName": _SPOT_SERVICE}}
        statements.append(allow("FirstSpotRequest", ["iam:CreateServiceLinkedRole"], [linked], for_spot))
    if config.instance_profile == "none":
        return statements
    if config.instance_profile == "auto":
        statements.append(allow("MakeRole", _ROLE_CHANGES, [profile, role]))
        passed = role
    else:
        passed = scope.iam(f"role/{config.instance_profile}")
    return [*statements, allow_passing(passed, region=scope.regions[0])]


def _job_statements(scope: _Scope, config: ProvisionConfig) -> list[Statement]:
    """Allows temporary credentials for jobs, limited to their URLs in S3 and to the operator's own permissions."""
    if config.instance_profile != "none":
        return []
    named = f"arn:{scope.partition}:sts::*:federated-user/{federated_name(scope.name or '*')}"
    return [allow("LimitJobs", ["sts:GetFederationToken"], [named])]


def _bucket_statements(scope: _Scope, urls: Mapping[str, str | None]) -> list[Statement]:
    """Allows the use of the whole buckets of cluster.toml's URLs, for `cluster data` and jobs."""
    statements = [allow("ListBuckets", ["s3:ListAllMyBuckets"], ["*"])]
    buckets = sorted({Keys.below(url, key=key).bucket for key, url in urls.items() if url is not None})
    if not buckets:
        return statements
    of_bucket = ("CreateBucket", "DeleteBucket", "GetBucketLocation", "ListBucket", "ListBucketMultipartUploads")
    of_objects = ("AbortMultipartUpload", "DeleteObject", "GetObject", "ListMultipartUploadParts", "PutObject")
    arns = [f"arn:{scope.partition}:s3:::{bucket}" for bucket in buckets]
    return [
        *statements,
        allow("Buckets", [f"s3:{action}" for action in (*of_bucket, "PutLifecycleConfiguration")], arns),
        allow("Objects", [f"s3:{action}" for action in of_objects], [f"{arn}/*" for arn in arns]),
    ]


def _tag_alone(key: str) -> Condition:
    """Returns the condition that a call writes this tag, and no other."""
    return {"ForAllValues:StringEquals": {"aws:TagKeys": key}, "Null": {"aws:TagKeys": "false"}}


def _both(one: Condition, other: Condition) -> Condition:
    """Returns both conditions in one: an operator that is in both gets the keys of both."""
    return {operator: {**one.get(operator, {}), **other.get(operator, {})} for operator in {**one, **other}}
