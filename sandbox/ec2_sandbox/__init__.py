"""A local EC2 and S3: moto behind TLS, and one real Linux host per running instance.

sandbox.py has the Python API, pytest_plugin.py the fixture `ec2_sandbox` for pytest, and cli/ the command.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ec2_sandbox.sandbox import Host, Sandbox, fault

__all__ = ["Host", "Sandbox", "fault"]


def __getattr__(name: str) -> Any:
    """Imports the API when it is first used (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ec2_sandbox import sandbox  # noqa: PLC0415 - see above

    return getattr(sandbox, name)
