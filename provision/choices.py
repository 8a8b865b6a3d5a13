"""What some settings of [provision] can be: apart from config.py, for those who do without cluster.toml."""

from typing import Literal

SshAddress = Literal["public", "private"]
Market = Literal["on-demand", "spot"]
MAX_NODES = 1000
"""One RunInstances and one TerminateInstances call take no more
(https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_TerminateInstances.html)."""
