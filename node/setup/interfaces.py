"""The network interfaces of this host."""


def find_interface(address: str) -> str | None:
    """The name of the network interface with this IPv4 address, or None."""
    import psutil  # noqa: PLC0415 - it takes 10 ms, and most processes of jobs need no interface

    interfaces = psutil.net_if_addrs().items()
    return next((name for name, found in interfaces if any(one.address == address for one in found)), None)
