"""Fixtures of the unit tests; each stands in the module that it belongs to."""

from provision_world import ec2, late_lists, world

__all__ = ["ec2", "late_lists", "world"]
