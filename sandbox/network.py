"""The sandbox's network: a bridge in a network namespace of its own, and one link from it to the machine.

The bridge does not stand in the machine's namespace, for two reasons. A machine with Docker sends bridged frames
through iptables (bridge-nf-call-iptables) and drops what it does not know, which would be every packet between two
hosts. And the namespace lives exactly as long as the process that holds it: when that is killed, bridge and links are
gone, the machine's end of the link too.
"""

import subprocess
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv4Network

from sandbox.marks import Place

BRIDGE = "bridge"
MTU = 9001  # between instances of a VPC (EC2 user guide, "Network maximum transmission unit")
COMMAND_TIMEOUT_S = 20


class CommandError(Exception):
    """A command of the machine failed; the message says which and what it said."""


def run_quietly(arguments: tuple[str, ...], stdin: str | None = None) -> None:
    """Runs a command of the machine. Raises CommandError."""
    try:
        subprocess.run(arguments, input=stdin, check=True, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)
    except subprocess.CalledProcessError as error:
        raise CommandError(f"{' '.join(arguments)}: {error.stderr.strip()}") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{' '.join(arguments)}: no end within {COMMAND_TIMEOUT_S} s") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """A running sandbox network. `holder` is the process that holds the bridge's namespace."""

    place: Place
    holder: subprocess.Popen[bytes]

    @property
    def is_up(self) -> bool:
        """Whether the namespace is still held; nothing is reachable any more when it is not."""
        return self.holder.poll() is None

    def plug_in(self, number: int, host_pid: int, mac_address: str) -> None:
        """Gives the network namespace of `host_pid` an eth0 that is plugged into the bridge, down as yet.

        number: another one for each host that is plugged in.
        """
        link = f"h{number}"
        batch = (
            f"link add {link} mtu {MTU} type veth peer name eth0 address {mac_address} mtu {MTU} netns {host_pid}\n"
            f"link set {link} master {BRIDGE} up\n"
        )
        run_quietly(_in_namespace(self.holder.pid), batch)


def open_network(place: Place, gateway: IPv4Interface, public: IPv4Network) -> Network:
    """Makes the bridge and the machine's link to it, with the routes to the private and the public range.

    Call it from the main thread: the holder dies with the thread that started it.
    """
    holder = subprocess.Popen(
        # The shell waits for the end of its input, which is the daemon's end.
        ("setpriv", "--pdeathsig", "KILL", "--", "unshare", "--net", "--",
         "/bin/sh", "-c", "echo; read -r _", place.mark),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, cwd="/",
    )  # fmt: skip
    assert holder.stdout is not None  # noqa: S101 -- tells mypy what PIPE means
    holder.stdout.readline()
    name = place.interface
    run_quietly(
        ("ip", "-batch", "-"),
        f"link add {name} mtu {MTU} type veth peer name uplink mtu {MTU} "
        f"netns {holder.pid}\n"
        f"addr add {gateway} brd + dev {name}\n"
        f"link set {name} up\n"
        f"route add {public} dev {name} src {gateway.ip}\n",
    )
    run_quietly(
        _in_namespace(holder.pid),
        f"link add {BRIDGE} mtu {MTU} type bridge forward_delay 0 mcast_snooping 0\n"
        f"link set uplink master {BRIDGE} up\n"
        f"link set {BRIDGE} up\n",
    )
    return Network(place=place, holder=holder)


def _in_namespace(pid: int) -> tuple[str, ...]:
    return ("nsenter", "--net", "--target", str(pid), "ip", "-batch", "-")
