"""Fixtures of these tests; each is defined in the module that it belongs to."""

from photos import run_here
from s3_server import project

__all__ = ["project", "run_here"]
