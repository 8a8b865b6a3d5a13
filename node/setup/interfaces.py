"""The network interfaces of this host."""

import fcntl
import socket
import struct

SIOCGIFADDR = 0x8915  # linux/sockios.h


def find_interface(address: str) -> str | None:
    """The name of the network interface with this IPv4 address, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(trial.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
