"""Fixtures of the unit tests; each is defined in the module that it belongs to."""

from ec2_sandbox.api.s3 import install_uploads
from provision_world import ec2, late_world, world

__all__ = ["ec2", "late_world", "world"]

install_uploads()  # moto itself would date the start of all unfinished uploads to 2010
