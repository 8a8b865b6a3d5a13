"""What the help of each command ends with, by examples.toml."""

import tomllib
from pathlib import Path

from cluster.sandbox import rename
from ec2_sandbox.cli.examples import EXAMPLES as SANDBOX
from ec2_sandbox.cli.examples import render_examples as render

EXAMPLES: dict[str, str] = {
    **{f"sandbox {name}".rstrip(): rename(text) for name, text in SANDBOX.items()},
    **tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")),
}


def render_examples(command: str) -> str:
    """Returns what the help of a command ends with. command: "up", "data put", or "" for `cluster` itself. Pure."""
    return render(EXAMPLES[command])
