"""Asks AWS again for longer than botocore does, where AWS says that it is too busy.

EC2 throttles an account's calls by token buckets, which a busy account shares with everybody in it
(https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html). botocore's standard mode gives up after
seconds, and that would leave a cluster half made.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from provision.hints import RETRY_CODES

if TYPE_CHECKING:
    from botocore.client import BaseClient

ATTEMPTS = 9
"""Of one call: botocore's own, then ours. About a minute in all."""
_LONGEST_DELAY_S = 20.0


def be_patient(client: BaseClient) -> None:
    """Lets a client repeat what AWS is too busy for, ATTEMPTS times in all, with jittered back-off.

    It is the same request each time, its ClientToken included. What else botocore repeats (lost connections, HTTP
    5xx) is left to it: an endpoint that is not there should not take a minute to say so.
    """
    service = client.meta.service_model.service_id.hyphenize()
    # The last handler: botocore's own answers first, and this one once that has given up.
    name = f"needs-retry.{service}"
    client.meta.events.register_last(name, _find_delay)  # type: ignore[arg-type]  # the stubs know no handler that answers


def _find_delay(attempts: int, response: tuple[Any, Mapping[str, Any]] | None, **_: object) -> float | None:
    """In how many seconds to ask again; None: not. attempts: how many there have been."""
    if response is None or attempts >= ATTEMPTS:
        return None
    if response[1].get("Error", {}).get("Code") not in RETRY_CODES:
        return None
    ceiling_s = min(2.0 ** (attempts - 1), _LONGEST_DELAY_S)
    return ceiling_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
