"""Launch templates: what a launch from a template asks for. Pure.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/create-launch-template.html
"""

from collections.abc import Iterable, Mapping
from typing import Any

from moto.ec2.exceptions import EC2ClientError

# The resource types that RunInstances and CreateFleet can tag at launch.
TAGGABLE = ("instance", "volume", "network-interface", "spot-instances-request")
GROUPS = ("SecurityGroups", "SecurityGroupIds")


def merge_launch(template: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a launch's parameters: the request's, and those of the template that the request does not have.

    Tags are merged by resource type and key, and block devices by name. The groups of a request replace the template's.
    """
    given = {name: value for name, value in template.items() if value is not None}
    if "UserData" in given:
        given["UserData"] = str(given["UserData"])  # moto keeps its own type
    if any(request.get(name) for name in GROUPS):
        given = {name: value for name, value in given.items() if name not in GROUPS}
    merged = {**given, **request}
    # moto adds the tags of the template itself to the template's data.
    tags = [spec for spec in given.get("TagSpecifications", []) if spec.get("ResourceType") != "launch-template"]
    if specifications := merge_tags([*tags, *request.get("TagSpecifications", [])]):
        merged["TagSpecifications"] = specifications
    devices = [*given.get("BlockDeviceMappings", []), *request.get("BlockDeviceMappings", [])]
    if devices:
        merged["BlockDeviceMappings"] = list({device["DeviceName"]: device for device in devices}.values())
    return merged


def merge_tags(specifications: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns one tag specification for each resource type. Of two tags with the same key, the later one counts."""
    merged: dict[str, dict[str, str]] = {}
    for specification in specifications:
        tags = {tag["Key"]: tag.get("Value", "") for tag in specification.get("Tags", [])}
        merged.setdefault(specification.get("ResourceType", ""), {}).update(tags)
    return [
        {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
        for kind, tags in merged.items()
    ]


def check_tagged(specifications: Iterable[Mapping[str, Any]], allowed: Iterable[str] = TAGGABLE) -> None:
    """Raises EC2ClientError for a resource type that the action cannot tag."""
    for specification in specifications:
        kind = specification.get("ResourceType", "")
        if kind not in allowed:
            raise EC2ClientError(
                "InvalidParameterValue", f"'{kind}' is not a valid taggable resource type for this operation."
            )
        check_keys(specification.get("Tags", []))


def check_keys(tags: Iterable[Mapping[str, str]]) -> None:
    """Raises EC2ClientError for a tag whose key only AWS may use."""
    if any(tag["Key"].lower().startswith("aws:") for tag in tags):
        raise EC2ClientError("InvalidParameterValue", "Tag keys starting with 'aws:' are reserved for internal use")
