"""[bootstrap] setup: the user's own commands, named by their content. They run once for each content of the list."""

import hashlib
import json
from collections.abc import Sequence

SILENCE_S = 1800
"""How long the commands may print nothing, in seconds, before they are taken for hung and ended."""
APT_TIMEOUT_S = 300
"""How long to wait for others who install packages on the node, in seconds."""


def setup_digest(commands: Sequence[str]) -> str | None:
    """SHA-256 of the list, in lower-case hexadecimal; None for an empty one. Pure."""
    return hashlib.sha256(render_commands(commands).encode()).hexdigest() if commands else None


def render_commands(commands: Sequence[str]) -> str:
    """The list as run_setup.py reads it. Pure."""
    return json.dumps(list(commands))
