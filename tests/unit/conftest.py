"""Fixtures of the unit tests; each is defined in the module that it belongs to."""

import os

os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"  # moto reads it at its import; the sandbox has its own images

from ec2_sandbox.api.moto_setup import remember_lookups
from ec2_sandbox.api.s3 import install_uploads
from provision_world import ec2, late_world, world

__all__ = ["ec2", "late_world", "world"]

install_uploads()  # moto itself would date the start of all unfinished uploads to 2010
remember_lookups()  # also for the tests whose S3 is moto's own server
