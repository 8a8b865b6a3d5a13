"""Credentials and authorities as botocore finds them: the environment, AWS_PROFILE, ~/.aws, SSO, a role."""

import os
from pathlib import Path
from typing import Any

from botocore.exceptions import CredentialRetrievalError

from foundation.errors import ConfigError

_ROLES: dict[str, Any] = {}  # the keys of roles, for all sessions: AWS accepts an MFA code only once


def read_credentials(session: Any) -> Any:
    """Returns the frozen credentials of a session of boto3 or botocore; None if there are none.

    Asks programs, files, services and, for an MFA code, the user: call it in the main thread. Raises botocore's errors
    and EOFError, and in place of any other error of these programs and files CredentialRetrievalError.
    """
    try:
        providers = getattr(session, "_session", session).get_component("credential_provider")
        providers.get_provider("assume-role").cache = _ROLES
        found = session.get_credentials()
        return found and found.get_frozen_credentials()
    except (AttributeError, OSError, RuntimeError, ValueError) as error:
        raise refuse(error) from error


def refuse(error: Exception) -> CredentialRetrievalError:
    """Returns the error for credentials that a profile's program or file does not provide, or that have expired."""
    return CredentialRetrievalError(provider="the program or file that the AWS profile names", error_msg=error)


def find_bundle() -> str | None:
    """Returns the file of the authorities that botocore trusts in place of its own; None for these."""
    from botocore.session import get_session  # noqa: PLC0415 - slow to import

    return get_session().get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE") or None


def read_authorities(path: str | None) -> str | None:
    """Returns the certificates in the file of AWS_CA_BUNDLE, as PEM; None if it is not set. Raises ConfigError."""
    if not path:
        return None
    try:
        return Path(path).read_text(encoding="ascii", errors="ignore")
    except OSError as error:
        raise ConfigError(f'AWS_CA_BUNDLE = "{path}": cannot be read: {error.strerror}') from error
