"""The [notify] section of cluster.toml: where the head reports events."""

import re
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from foundation.errors import ConfigError
from foundation.setting_types import HIDDEN, Settings, check_command

MAX_URL = 2000
_OF_ENVIRONMENT = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")


def check_webhook(text: str) -> str:
    """Returns the URL, or the $NAME of a variable, unchanged. Pure. Raises ValueError, which does not repeat it."""
    if _OF_ENVIRONMENT.fullmatch(text):
        return text
    if len(text) > MAX_URL or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError(f"must be an https:// URL of at most {MAX_URL} visible ASCII characters")
    try:
        parts = urlsplit(text)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        raise ValueError("not a valid URL") from None
    if parts.scheme not in {"https", "http"} or not parts.hostname or not port_is_valid:
        raise ValueError('must be an https:// URL, or "$NAME" for a variable of this machine\'s environment')
    if parts.username is not None or parts.password is not None:
        raise ValueError("must have no user or password before the host")
    if parts.scheme == "http" and not _is_private(parts.hostname):
        raise ValueError("must be https://: others can read what is sent to a public address without encryption")
    return text


def _is_private(host: str) -> bool:
    try:
        return ip_address(host).is_private
    except ValueError:
        return host == "localhost"


class NotifyConfig(Settings, frozen=True, kw_only=True):
    """[notify]: where the head reports events, whether this machine runs or not."""

    webhook: (
        Annotated[
            str,
            HIDDEN,
            check_webhook,
            Meta(
                description="a URL that gets each event as a POST of JSON, such as a chat's incoming webhook; it is a "
                'secret, never shown or stored: "$NAME" takes it from this machine\'s environment'
            ),
        ]
        | None
    ) = None
    command: (
        Annotated[
            str,
            check_command,
            Meta(min_length=1, description="a shell command that runs on the head, the event as JSON on its stdin"),
        ]
        | None
    ) = None

    @property
    def is_set(self) -> bool:
        """Whether the head reports events at all."""
        return self.webhook is not None or self.command is not None


def find_webhook(config: NotifyConfig, env: Mapping[str, str]) -> str | None:
    """The webhook's URL. env: this machine's environment. Pure.

    Raises ConfigError if the variable is not set, or is not a valid URL.
    """
    found = _OF_ENVIRONMENT.fullmatch(config.webhook or "")
    if found is None:
        return config.webhook
    name = found[1]
    url = env.get(name, "")
    hint = f"export {name}=https://..., or remove [notify] webhook"
    if not url or url.startswith("$"):
        raise ConfigError(f'notify.webhook = "${name}": this variable is not set to a URL here', hint=hint)
    try:
        return check_webhook(url)
    except ValueError as error:
        raise ConfigError(f'notify.webhook = "${name}": {error}', hint=hint) from None
