"""Where S3 is and who asks, as every AWS tool finds it: the environment, AWS_PROFILE, ~/.aws, SSO, an instance's role.

botocore knows all of these, and takes a quarter of a second to load. Where the environment says everything by itself,
it is not asked: that is as long as a thousand small files take.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from json import JSONDecodeError
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.errors import AwsError, ConfigError

if TYPE_CHECKING:
    from obstore.store import S3Credential

# https://docs.aws.amazon.com/general/latest/gr/s3.html
_OF_A_REGION = re.compile(r"(https://s3(?:-fips)?(?:\.dualstack)?\.)[a-z0-9-]+(\.amazonaws\.com(?:\.cn)?/?)")
_FRESH_FOR = timedelta(minutes=2)
"""For how long obstore keeps what it was given; botocore renews in time what ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class S3Endpoint:
    """How obstore reaches S3. authorities: PEM, beside those of the system. credentials: asked again now and then.

    session: botocore's, where it was asked: with it nobody is asked a second time for a code.
    """

    url: str | None
    authorities: str | None
    credentials: "Callable[[], S3Credential]" = field(repr=False)
    session: Any = field(default=None, repr=False)

    def in_region(self, region: str) -> "S3Endpoint":
        """The same in a region: AWS's addresses are named after theirs. Pure."""
        found = _OF_A_REGION.fullmatch(self.url or "")
        return replace(self, url=f"{found[1]}{region}{found[2]}") if found else self


def find_endpoint(*, region: str) -> S3Endpoint:
    """As botocore would find it. Raises AwsError where there are no credentials, ConfigError for AWS_CA_BUNDLE."""
    env = os.environ
    url = env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL")
    if env.get("AWS_ACCESS_KEY_ID") and env.get("AWS_SECRET_ACCESS_KEY") and (url or not _says_more(env)):
        return S3Endpoint(
            url=url, authorities=_read_authorities(env.get("AWS_CA_BUNDLE")), credentials=_of_environment(env)
        )
    return _ask_botocore(region)


def _says_more(env: Mapping[str, str]) -> bool:
    """Whether something but a URL in the environment may say where S3 is.

    A profile may name an endpoint or one of AWS's other kinds, in either of the two files, and a bundle.
    """
    if env.get("AWS_USE_FIPS_ENDPOINT") or env.get("AWS_USE_DUALSTACK_ENDPOINT"):
        return True
    files = (
        env.get("AWS_CONFIG_FILE") or "~/.aws/config",
        env.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials",
    )
    return any(Path(file).expanduser().exists() for file in files)


def _of_environment(env: Mapping[str, str]) -> "Callable[[], S3Credential]":
    keys: S3Credential = {
        "access_key_id": env["AWS_ACCESS_KEY_ID"],
        "secret_access_key": env["AWS_SECRET_ACCESS_KEY"],
        "token": env.get("AWS_SESSION_TOKEN") or None,
        "expires_at": None,
    }
    return lambda: keys


def _ask_botocore(region: str) -> S3Endpoint:
    from botocore.session import get_session  # noqa: PLC0415 - see the top

    with _explained():
        session = get_session()
        # First: in its region STS is asked, too, for the keys of an assumed role. Its endpoint is that of
        # AWS_ENDPOINT_URL, of a profile's endpoint_url, or AWS's own for the region.
        url = session.create_client("s3", region_name=region).meta.endpoint_url
        credentials: Any = session.get_credentials()
        bundle = session.get_config_variable("ca_bundle")
        if credentials is None:
            raise AwsError("no AWS credentials were found", hint="aws configure, or set AWS_PROFILE")
        credentials.get_frozen_credentials()  # here, and once: a code may be asked for, or all of it may be in vain

    def fresh() -> "S3Credential":
        with _explained():
            frozen = credentials.get_frozen_credentials()
        until = datetime.now(UTC) + _FRESH_FOR
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": min(until, getattr(credentials, "_expiry_time", None) or until),
        }

    return S3Endpoint(url=url, authorities=_read_authorities(bundle), credentials=fresh, session=session)


@contextmanager
def _explained() -> Iterator[None]:
    """Raises AwsError for what it may come to when keys are asked for: programs, files, services and people are."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - see the top

    from train.s3.client import explain  # noqa: PLC0415 - needed for errors alone

    try:
        yield
    except (BotoCoreError, ClientError, EOFError, JSONDecodeError, OSError) as error:
        raise explain(error, "connect", bucket=None, key=None) from error


def _read_authorities(path: str | None) -> str | None:
    if not path:
        return None
    try:
        return Path(path).read_text(encoding="ascii", errors="ignore")
    except OSError as error:
        raise ConfigError(f'AWS_CA_BUNDLE = "{path}": cannot be read: {error.strerror}') from error
