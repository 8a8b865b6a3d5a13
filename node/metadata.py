"""Queries the instance metadata service of this host by IMDSv2: each request carries a token from a PUT request.

The service answers only the host itself, not its containers, which are one network hop further away.
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
"""

from typing import NamedTuple

ADDRESS = "169.254.169.254"
TIMEOUT_S = 2.0
TOKEN_S = 60
LARGEST_ANSWER = 1 << 16


class MetadataResponse(NamedTuple):
    """An answer of the service. status, reason: those of HTTP."""

    status: int
    reason: str
    text: str


def get(path: str, address: str = ADDRESS) -> MetadataResponse:
    """Returns the service's answer for a path, or for the token if that is refused. Raises OSError without an answer.

    It needs no proxy.
    """
    given = _ask(address, "PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)})
    return given if given.status != 200 else _ask(address, "GET", path, {"X-aws-ec2-metadata-token": given.text})


def _ask(address: str, method: str, path: str, headers: dict[str, str]) -> MetadataResponse:
    # With ssl, this takes a sixth of the start of each process of a job, and only one on each host needs it.
    from http.client import HTTPConnection, HTTPException  # noqa: PLC0415

    connection = HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        text = answer.read(LARGEST_ANSWER).decode("utf-8", "replace")
    except HTTPException as error:
        raise OSError(f"its answer is not HTTP: {error}") from error
    finally:
        connection.close()
    return MetadataResponse(answer.status, answer.reason, text)
