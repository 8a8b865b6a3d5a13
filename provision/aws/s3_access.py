"""The environment of a job for MXNet's own S3 reader (dmlc-core, src/io/s3_filesys.cc): endpoint and credentials.

The reader reads the environment once, supports neither instance profiles nor configuration files, and always uses
https.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from foundation.errors import AwsError, ConfigError
from provision.aws.credentials import read_authorities
from provision.model import domain_of, federated_name

if TYPE_CHECKING:
    from provision.aws.clients import Clients


@dataclass(frozen=True, kw_only=True, slots=True)
class S3Access:
    """Environment variables for a job. `secrets` never appear on a command line, in a file or in a log.

    of_nodes: there are no secrets, because the job uses the credentials of the nodes' instance profile. left_s: how
    long the secrets are valid, if known. warning: for the user, if the secrets allow more than the job needs.
    authorities: the certificates of AWS_CA_BUNDLE, if the endpoint needs them: botocore knows only its own.
    """

    env: Mapping[str, str]
    secrets: Mapping[str, str] = field(repr=False)
    of_nodes: bool = False
    left_s: float | None = None
    warning: str | None = None
    authorities: str | None = None


def s3_environment(*, region: str, endpoint_url: str | None, private_ca: bool) -> dict[str, str]:
    """The variables that give MXNet's reader the endpoint. Pure.

    endpoint_url: as in AWS_ENDPOINT_URL; None is AWS itself. private_ca: the endpoint's certificate is signed by a
    private CA, which the reader cannot be given. Raises ConfigError for an endpoint that the reader cannot use.
    """
    env = {"AWS_REGION": region, "AWS_DEFAULT_REGION": region, "S3_REGION": region}
    if endpoint_url is None:
        if region != "us-east-1":
            # Otherwise the reader asks us-east-1, and cannot follow the redirect to the bucket's region.
            env |= {"S3_IS_AWS": "0", "S3_ENDPOINT": f"s3.{region}.{domain_of(region)}"}
        return env
    parts = urlsplit(endpoint_url)
    if parts.scheme != "https" or not parts.netloc or parts.path.strip("/"):
        raise ConfigError(f'the S3 endpoint "{endpoint_url}": MXNet reads from https:// endpoints without a path only')
    env |= {"S3_IS_AWS": "0", "S3_ENDPOINT": parts.netloc, "AWS_ENDPOINT_URL": endpoint_url}
    if private_ca:
        env["S3_VERIFY_SSL"] = "0"
    return env


def find_s3_access(
    *,
    region: str,
    instance_profile: str,
    cluster: str,
    policy: str | None,
    max_duration_s: int | None = None,
    clients: "Clients | None" = None,
) -> S3Access:
    """A job's access to S3. instance_profile: [provision] instance_profile of cluster.toml.

    policy: the permissions that the job needs, as JSON (provision/aws/iam_policy.py); None if it needs none.
    max_duration_s: the job's, or None. clients: of the region, if they exist already.

    With the profile "none", the job gets temporary credentials for its duration, which allow what both the policy and
    the caller's own permissions allow (job_keys.py). Otherwise it uses the nodes' own credentials, and the caller's are
    not read.
    Raises AwsError, and ConfigError for an endpoint that MXNet cannot read from or a bad AWS_CA_BUNDLE.
    """
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - slow to import, and only needed here

    try:
        endpoint_url, bundle = _find_endpoint()
    except BotoCoreError as error:
        raise AwsError(f"reading the AWS configuration: {error}", hint="aws configure list") from error
    env = s3_environment(region=region, endpoint_url=endpoint_url, private_ca=bool(bundle))
    authorities = read_authorities(bundle) if endpoint_url is not None else None
    if instance_profile != "none":
        return S3Access(env=env, secrets={}, of_nodes=True, authorities=authorities)
    if policy is None:
        return S3Access(env=env, secrets={}, authorities=authorities)
    from provision.aws.job_keys import make_job_keys  # noqa: PLC0415 - as above
    from provision.aws.session import make_session  # noqa: PLC0415 - as above

    session = make_session(region) if clients is None else clients.session
    try:
        keys = make_job_keys(
            session,
            session.client("sts") if clients is None else clients.sts,
            policy=policy,
            name=federated_name(cluster),
            max_duration_s=max_duration_s,
        )
    except (ClientError, BotoCoreError) as error:
        raise AwsError(f"no temporary credentials for the job: {error}", hint="aws sts get-caller-identity") from error
    left_s = (keys.ends_at - datetime.now(UTC)).total_seconds() if keys.ends_at is not None else None
    return S3Access(env=env, secrets=keys.secrets, left_s=left_s, warning=keys.warning, authorities=authorities)


def _find_endpoint() -> tuple[str | None, str | None]:
    """S3's endpoint and its CA bundle, of the environment or the profile; None for AWS's. Raises BotoCoreError."""
    from botocore.configprovider import ConfiguredEndpointProvider  # noqa: PLC0415 - as above
    from botocore.session import get_session  # noqa: PLC0415 - as above

    session = get_session()
    endpoint = ConfiguredEndpointProvider(session.full_config, session.get_scoped_config(), "s3")
    return endpoint.provide(), session.get_config_variable("ca_bundle")
