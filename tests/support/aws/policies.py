"""The policies of the project's settings, and whether the tests' own IAM allows a call by them."""

from typing import Any

from iam_evaluator import allows
from provision.aws.operator_policy import render_operator_policy
from provision.aws.role_policy import render_role_policy
from provision.config import ProvisionConfig
from provision.model import tags

REGION = "us-east-1"
ACCOUNT = "123456789012"
DATA = "s3://data/digits/"
RESULTS = "s3://results/models/"
OURS = {"aws__ResourceTag___cluster__name": "demo"}
MADE = {"aws__RequestTag___cluster__name": "demo"}
NEIGHBOURS = {"aws__ResourceTag___cluster__name": "other"}


def role(data: str | None = DATA, results: str | None = RESULTS, *, replaces: bool = True, **config: Any) -> str:
    return render_role_policy(
        ProvisionConfig(**config),
        name="demo",
        region=config.get("region", REGION),
        data_url=data,
        results_url=results,
        replaces_nodes=replaces,
    )


def operator(
    *,
    name: str | None = "demo",
    data: str | None = DATA,
    results: str | None = RESULTS,
    **config: Any,
) -> str:
    return render_operator_policy(ProvisionConfig(**config), name=name, data_url=data, results_url=results)


def may(document: str, action: str, resource: str = "*", **context: str | tuple[str, ...]) -> bool:
    """Whether IAM allows the action. context: condition keys, with __ for : and ___ for /."""
    given = {
        key.replace("___", "/").replace("__", ":").lower(): (value,) if isinstance(value, str) else value
        for key, value in context.items()
    }
    return allows(document, action, resource, {"aws:requestedregion": (REGION,), **given})


def ec2(resource: str) -> str:
    return f"arn:aws:ec2:{REGION}:{ACCOUNT}:{resource}"


def iam(resource: str) -> str:
    return f"arn:aws:iam::{ACCOUNT}:{resource}"


def tagged(**more: str) -> dict[str, str | tuple[str, ...]]:
    """The condition keys of a call that sets a node's tags. more: further tags, or other values of these."""
    given = {**tags(name="demo", owner="anyone", role="node"), **{key.replace("__", ":"): v for key, v in more.items()}}
    requested = {f"aws__RequestTag___{key.replace(':', '__')}": value for key, value in given.items()}
    return {**requested, "aws__TagKeys": tuple(given)}
