"""Fixtures of the unit tests; each is defined in the module that it belongs to."""

from provision_world import ec2, late_world, world
from s3_server import server, shared_server

__all__ = ["ec2", "late_world", "server", "shared_server", "world"]
