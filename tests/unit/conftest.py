"""Fixtures of the unit tests; each stands in the module that it belongs to."""

import os

os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"  # moto reads it when it is imported; the sandbox has its own images

from provision_world import ec2, late_world, world
from sandbox import moto_speed

__all__ = ["ec2", "late_world", "world"]

moto_speed.install()  # for the tests whose S3 is moto's own server, too
