"""Opens a bucket with obstore, on this machine and on the nodes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from obstore.store import S3Store

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config, S3Credential


def open_store(
    bucket: str,
    *,
    region: str,
    endpoint: str | None,
    find_keys: Callable[[], S3Credential],
    client: ClientConfig,
    in_host: bool = False,
    max_retries: int,
) -> S3Store:
    """Opens a bucket with obstore. S3 verifies the SHA-256 of uploads; obstore renews the credentials in time.

    endpoint: None for AWS's own. in_host: whether the endpoint's host name contains the bucket, so that paths do not.
    """
    config: S3Config = {
        "region": region,
        "checksum_algorithm": "SHA256",
        "virtual_hosted_style_request": in_host,
    }
    if endpoint:
        config["endpoint"] = endpoint
        client = {**client, "allow_http": endpoint.startswith("http://")}
    return S3Store(
        bucket,
        config=config,
        client_options=client,
        credential_provider=find_keys,
        retry_config={"max_retries": max_retries},
    )


def find_reason(text: str) -> str | None:
    """Returns why no S3 was reached, by the text of an obstore error; None for another error. Pure."""
    if "InvalidCertificate" in text:
        return "its certificate is not trusted"
    if "ProxyAuthRequired" in text:
        return "the proxy requires a user name and password"
    if "TunnelUnsuccessful" in text:
        return "the proxy refuses the connection"
    cause = re.search(r'(?:message|error): "([^"]+)"', text)
    return cause and cause[1]


def keep_keys(access_key: str, secret_key: str, token: str | None) -> Callable[[], S3Credential]:
    """Returns a function that obstore can call for fixed credentials."""
    keys: S3Credential = {
        "access_key_id": access_key,
        "secret_access_key": secret_key,
        "token": token,
        "expires_at": None,
    }
    return lambda: keys
