"""The credentials that EC2 gives this host for the role of its instance profile.

They are read from the instance metadata service, IMDSv2: a token first, by PUT, then the role's name, then its keys
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-security-credentials.html). It answers one hop
away only: the host itself, but no container on it.
"""

from __future__ import annotations

import http.client
import json
import time
from datetime import datetime, timedelta, timezone

import msgspec

ADDRESS = "169.254.169.254"
ROLES = "/latest/meta-data/iam/security-credentials/"
TIMEOUT_S = 2.0
PATIENCE_S = 6.0  # for an instance that has just started; less than the user's machine waits for a word
PAUSE_S = 0.5
TOLD_BELOW = timedelta(hours=6)  # what AWS gives at most


class CredentialsError(OSError):
    """There are no credentials here; says why, and what to do."""


class Keys(msgspec.Struct, frozen=True, rename="pascal"):
    """What the metadata service gives."""

    access_key_id: str
    secret_access_key: str
    token: str
    expiration: datetime

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that hand them to a program."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_SESSION_TOKEN": self.token,
        }


def wait_for(address: str = ADDRESS) -> Keys:
    """The credentials as IMDS has them. Raises CredentialsError when there are none after PATIENCE_S."""
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        try:
            return read(address)
        except CredentialsError:
            if time.monotonic() > give_up_at:
                raise
        time.sleep(PAUSE_S)


def read(address: str) -> Keys:
    """Ask once. Raises CredentialsError."""
    try:
        token = _ask(address, "PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})
        header = {"X-aws-ec2-metadata-token": token}
        role = _ask(address, "GET", ROLES, header).split()[0]
        found = json.loads(_ask(address, "GET", ROLES + role, header))
        if found.get("Code") == "Success":
            return msgspec.convert(found, Keys)
    except CredentialsError:
        raise
    except (OSError, ValueError, AttributeError, IndexError, http.client.HTTPException) as error:
        raise CredentialsError(f"the instance metadata service gives no credentials: {error}") from None
    said = f"{found.get('Code')} {found.get('Message', '')}"
    raise CredentialsError(f"AWS gives this instance no credentials for the role {role}: {said}")


def render_expiry(expiration: datetime, now: datetime | None = None) -> list[str]:
    """What a user has to know of credentials that end then: a list of no line or one."""
    left = expiration - (now or datetime.now(timezone.utc))
    if left >= TOLD_BELOW:
        return []
    hours, minutes = divmod(int(left.total_seconds()) // 60, 60)
    ends_at = f"in {hours} h {minutes} min, at {expiration:%Y-%m-%dT%H:%M:%SZ}"
    return [f"the job's AWS credentials end {ends_at}: MXNet's s3:// reader cannot renew them"]


def _ask(address: str, method: str, path: str, headers: dict[str, str]) -> str:
    """The text at a path of the metadata service, asked without any proxy.

    Raises CredentialsError, OSError, HTTPException.
    """
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status == 404:
        raise CredentialsError(
            "this instance has no credentials: it was launched without the instance profile that cluster.toml asks "
            'for; cluster down, then cluster up; or set [provision] instance_profile = "none"'
        )
    if answer.status != 200:
        refusal = f"{answer.status} {answer.reason}"
        raise CredentialsError(f"the instance metadata service refuses to give credentials: {refusal}")
    return body.decode("utf-8")
