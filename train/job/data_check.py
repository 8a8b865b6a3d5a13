"""Checks whether a job can read [data] url: chooses an object, reads it on every node, and explains the result."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from bootstrap.apply import ReadyNode
from bootstrap.verify.checks import EVERYWHERE, Check, Probe, ProbeResult, Status, summarize_error
from foundation.errors import ClusterError, NotFoundError
from node.engines.engine import Framework
from node.staging.s3_store import find_tag
from provision.aws.iam_policy import S3Scope, render_job_policy
from provision.aws.s3_access import S3Access, find_s3_access
from train.s3.connection import Connection
from train.s3.errors import S3AccessDeniedError
from train.s3.url import S3Object, S3Url, parse_url

TIMEOUT_S = 90.0
MAX_LISTED = 1000
NOTHING_THERE: Status = "warning"
"""The status for missing data: nodes may be verified before the upload, so it is not an error of the nodes."""


class Meaning(NamedTuple):
    """The outcome of a read; see Check."""

    status: Status
    result: str
    cause: str | None = None
    hint: str | None = None


def plan_s3_check(
    url: str | None, *, region: str, instance_profile: str, cluster: str, is_deep: bool = False
) -> Probe | Check:
    """Returns the probe that reads an object below `url` on every node, or a Check if there is nothing to read.

    url: [data] url. region, instance_profile: from [provision]. cluster: its name. is_deep: it also measures the rate.
    Sends requests to S3 and STS from this machine.
    """
    if url is None:
        return _everywhere("s3://", Meaning("unchecked", "not checked: [data] url is not set"))
    try:
        policy = render_job_policy(S3Scope(data_url=url), region=region)
        access = find_s3_access(region=region, instance_profile=instance_profile, cluster=cluster, policy=policy)
        where = parse_url(url)
        listed = Connection(region=region).list_objects(where, limit=MAX_LISTED, exact=True)
    except S3AccessDeniedError as error:
        of_nodes = instance_profile != "none"
        status: Status = "unchecked" if of_nodes else "failed"
        message = "not checked: this machine may not list objects" if of_nodes else "access denied"
        return _everywhere(url, Meaning(status, message, error.message, error.hint))
    except NotFoundError as error:
        hint = f"cluster data put --create-bucket FOLDER {url}"
        return _everywhere(url, Meaning(NOTHING_THERE, f"not checked: {error.message}", hint=hint))
    except ClusterError as error:
        return _everywhere(url, Meaning("failed", error.message, hint=error.hint))
    found = choose_object(listed, where)
    if found is None:
        hint = f"cluster data put FOLDER {url}"
        return _everywhere(url, Meaning(NOTHING_THERE, "not checked: the folder is empty", hint=hint))
    return s3_probe(found, access, is_deep=is_deep)


def _everywhere(url: str, meaning: Meaning) -> Check:
    return Check(node=EVERYWHERE, check="s3", subject=url, **meaning._asdict())


def choose_object(listed: Sequence[S3Object], url: S3Url) -> S3Url | None:
    """Chooses the object to read, preferably a .rec; None if there is none with content. Pure."""
    folder = url.as_folder().key
    below = [item.url for item in listed if item.size_bytes and (item.url == url or item.url.key.startswith(folder))]
    return min(below, key=lambda found: not found.key.endswith(".rec"), default=None)


def s3_probe(found: S3Url, access: S3Access, *, is_deep: bool = False) -> Probe:
    """Returns the probe that reads the object as a job would, with MXNet if MXNet can read it.

    access: S3's endpoint and the credentials. is_deep: as for plan_s3_check.
    """
    return Probe(
        check="s3",
        program="verify_s3",
        order={
            "uri": str(found),
            "env": dict(access.env),
            "secrets": dict(access.secrets),
            "nodes_credentials": access.of_nodes,
            "is_deep": is_deep,
        },
        timeout_s=TIMEOUT_S,
        to_checks=partial(check_s3, uri=str(found), endpoint=access.env.get("S3_ENDPOINT", "s3.amazonaws.com")),
    )


def check_s3(node: ReadyNode, result: ProbeResult, *, uri: str, endpoint: str) -> tuple[Check, ...]:
    """Returns the check that results from a node's read of the object. Pure."""
    meaning = _find_meaning(result, node=node.host.name, uri=uri, endpoint=endpoint, framework=node.framework)
    return (Check(node=node.host.name, check="s3", subject=uri, **meaning._asdict()),)


def _find_meaning(result: ProbeResult, *, node: str, uri: str, endpoint: str, framework: Framework) -> Meaning:
    of_mxnet = framework == "mxnet"
    match next(iter(result.messages), None):
        case None if result.exit_code == 1:
            meaning = Meaning("unchecked", f"not checked: {result.last_words}")  # the compute check reports why
        case None:
            name = "MXNet" if of_mxnet else "the reader"
            meaning = Meaning("failed", f"{name} {result.ending}", f"while it read {uri}", _ask(node, endpoint))
        case {"credentials": why}:
            hint = "cluster iam-policy, and [provision] instance_profile in cluster.toml"
            meaning = Meaning("failed", "no credentials", why, hint)
        case {"read": size_bytes}:
            meaning = Meaning("ok", f"read by MXNet, a record of {size_bytes} bytes")
        case {"staged": size_bytes}:
            meaning = Meaning(
                "ok", f"read by staging,{' for this MXNet wheel,' if of_mxnet else ''} {size_bytes} bytes"
            )
        case {"code": None | "" | "Broken", "refused": words}:  # s3.py's code for a broken connection
            meaning = Meaning("failed", f"{endpoint} cannot be reached", words[:300], _ask(node, endpoint))
        case {"code": code, "refused": words}:
            meaning = _explain_refusal(code, words, uri=uri)
        case {"error": error}:
            meaning = explain_error(error, node=node, uri=uri, endpoint=endpoint)
        case _:
            meaning = Meaning("failed", f"an invalid answer: {result.last_words}")
    return meaning


def _ask(node: str, endpoint: str) -> str:
    return f"cluster exec --node {node} -- curl -sS -m 10 https://{endpoint}"


def explain_error(error: str, *, node: str, uri: str, endpoint: str) -> Meaning:
    """The meaning of an error from MXNet 1.7.0's reader, as observed with servers that refuse requests. Pure."""
    if code := find_tag("Code", error):
        return _explain_refusal(code, find_tag("Message", error), uri=uri)
    if "Invalid RecordIO" in error:
        return Meaning("ok", "read by MXNet; it is not a RecordIO file")
    return Meaning("failed", summarize_error(error), hint=_ask(node, endpoint))


def _explain_refusal(code: str, words: str, *, uri: str) -> Meaning:
    hint = {
        "AccessDenied": "cluster iam-policy prints the permissions that the job's credentials need",
        "NoSuchKey": f"cluster data ls {uri}",
        "PermanentRedirect": "[provision] region in cluster.toml: the bucket is in another region",
    }.get(code, "aws sts get-caller-identity; run the command again")
    return Meaning("failed", code, words[:300] or None, hint)
