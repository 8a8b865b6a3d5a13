"""Fixtures of the unit tests; each is defined in the module that it belongs to."""

import ec2_sandbox.api.s3  # noqa: F401 - moto itself would date the start of all unfinished uploads to 2010
from provision_world import ec2, late_world, world

__all__ = ["ec2", "late_world", "world"]
