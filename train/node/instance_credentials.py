"""The credentials that EC2 gives this host for the role of its instance profile.

They come from the instance metadata service, IMDSv2: first a token, by PUT, then the role's name, then its keys
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-security-credentials.html). The service answers
only the host itself, not its containers: they are a network hop further away.
"""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta, timezone

import msgspec

ADDRESS = "169.254.169.254"
ROLES = "/latest/meta-data/iam/security-credentials/"
TIMEOUT_S = 2.0
PATIENCE_S = 6.0  # for an instance that has just started; less than the user's machine waits for an answer
PAUSE_S = 0.5
WARN_BELOW = timedelta(hours=6)  # AWS's maximum


class CredentialsError(OSError):
    """There are no credentials; the message says why, and what to do."""


class Keys(msgspec.Struct, frozen=True, rename="pascal"):
    """The keys in the metadata service's answer."""

    access_key_id: str
    secret_access_key: str
    token: str
    expiration: datetime

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that pass them to a program."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_SESSION_TOKEN": self.token,
        }


def wait_for(address: str = ADDRESS) -> Keys:
    """The credentials of this host. Raises CredentialsError if there are none after PATIENCE_S."""
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
    except (OSError, ValueError, AttributeError, IndexError) as error:
        raise CredentialsError(f"the instance metadata service gives no credentials: {error}") from None
    reason = f"{found.get('Code')} {found.get('Message', '')}"
    raise CredentialsError(f"AWS gives this instance no credentials for the role {role}: {reason}")


def render_expiry(expiration: datetime, now: datetime | None = None) -> list[str]:
    """A list with a warning if the credentials expire soon, else an empty list."""
    left = expiration - (now or datetime.now(timezone.utc))
    if left >= WARN_BELOW:
        return []
    hours, minutes = divmod(int(left.total_seconds()) // 60, 60)
    ends_at = f"in {hours} h {minutes} min, at {expiration:%Y-%m-%dT%H:%M:%SZ}"
    return [f"the job's AWS credentials expire {ends_at}: MXNet's s3:// reader cannot renew them"]


def _ask(address: str, method: str, path: str, headers: dict[str, str]) -> str:
    """The text at a path of the metadata service, without a proxy. Raises CredentialsError, OSError."""
    from http.client import HTTPConnection, HTTPException  # noqa: PLC0415 - see notice.py

    connection = HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
    except HTTPException as error:
        raise OSError(str(error) or type(error).__name__) from error
    finally:
        connection.close()
    if answer.status == 404:
        raise CredentialsError(
            "this instance has no credentials: it was launched without the instance profile of cluster.toml; "
            'cluster down, then cluster up; or set [provision] instance_profile = "none"'
        )
    if answer.status != 200:
        reason = f"{answer.status} {answer.reason}"
        raise CredentialsError(f"the instance metadata service refuses to give credentials: {reason}")
    return body.decode("utf-8")
