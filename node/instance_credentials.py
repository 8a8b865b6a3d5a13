"""The credentials that EC2 gives this host for the role of its instance profile.

They come from the instance metadata service: first the role's name, then its keys
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-security-credentials.html).
"""

import json
import time
from datetime import datetime

import msgspec

from foundation.decode import decode
from node import metadata
from node.metadata import ADDRESS

ROLES = "/latest/meta-data/iam/security-credentials/"
PATIENCE_S = 6.0  # for an instance that has just started; less than the user's machine waits for an answer
PAUSE_S = 0.5


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
        """The environment variables that pass the keys to a program."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_SESSION_TOKEN": self.token,
        }


def wait_for(address: str = ADDRESS) -> Keys:
    """Returns the credentials of this host. Raises CredentialsError if there are none after PATIENCE_S."""
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        try:
            return read(address)
        except CredentialsError:
            if time.monotonic() > give_up_at:
                raise
        time.sleep(PAUSE_S)


def read(address: str) -> Keys:
    """Requests the credentials once. Raises CredentialsError."""
    try:
        role = _get(address, ROLES).split()[0]
        answer = _get(address, ROLES + role)
        found = json.loads(answer)
        if found.get("Code") == "Success":
            return decode(answer.encode(), Keys)
    except CredentialsError:
        raise
    except (OSError, ValueError, AttributeError, IndexError) as error:
        raise CredentialsError(f"the instance metadata service gives no credentials: {error}") from None
    reason = f"{found.get('Code')} {found.get('Message', '')}"
    raise CredentialsError(f"AWS gives this instance no credentials for the role {role}: {reason}")


def _get(address: str, path: str) -> str:
    """Returns the text at a path. Raises CredentialsError, OSError."""
    answer = metadata.get(path, address)
    if answer.status == 404:
        raise CredentialsError(
            "this instance has no credentials: it was launched without the instance profile of cluster.toml; "
            'cluster down, then cluster up; or set [provision] instance_profile = "none"'
        )
    if answer.status != 200:
        reason = f"{answer.status} {answer.reason}"
        raise CredentialsError(f"the instance metadata service refuses to give credentials: {reason}")
    return answer.text
