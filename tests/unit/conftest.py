"""Fixtures of the unit tests; each is defined in the module that it belongs to."""

from provision_world import ec2, late_world, world

__all__ = ["ec2", "late_world", "world"]
