"""The names of instances, and the name server that resolves them for hosts, as AmazonProvidedDNS does.

A private name contains the address. Within the VPC, a public name resolves to the private address of the instance that
currently has the public address. Other names do not resolve, because hosts have no access to the Internet.

Source: VPC user guide, "DNS attributes for your VPC" and "Understanding Amazon DNS".
"""

import logging
import socketserver
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network
from typing import NamedTuple

import dns.exception
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

PORT = 53
TTL_S = 60
REVERSE = ".in-addr.arpa"

log = logging.getLogger("ec2_sandbox.names")


class Record(NamedTuple):
    """A DNS record. `kind`: its type."""

    kind: str
    value: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Names:
    """The names of the instances in a region. `private`: the VPC's range. `public`: the range of public addresses."""

    region: str
    private: IPv4Network
    public: IPv4Network

    def name_of(self, address: str) -> str:
        """Returns the name of a public or private address. Pure."""
        dashed, home = address.replace(".", "-"), self.region == "us-east-1"
        if IPv4Address(address) in self.public:
            return f"ec2-{dashed}.{'compute-1' if home else f'{self.region}.compute'}.amazonaws.com"
        return f"ip-{dashed}.{'ec2' if home else f'{self.region}.compute'}.internal"

    def look_up(self, name: str, private_of: Callable[[str], str | None]) -> Record | None:
        """Returns the record of a name in lower case, or None if the name does not exist. Pure.

        private_of: returns the private address of the instance that has this public address, or None.
        """
        if name.endswith(REVERSE):
            address = _read_address(".".join(reversed(name.removesuffix(REVERSE).split("."))))
            return Record("PTR", f"{self.name_of(str(address))}.") if self._has(address) else None
        address = _read_address(name.partition(".")[0].partition("-")[2].replace("-", "."))
        if not self._has(address) or self.name_of(str(address)) != name:
            return None
        found = private_of(str(address)) if address in self.public else str(address)
        return Record("A", found) if found is not None else None

    def _has(self, address: IPv4Address | None) -> bool:
        return address is not None and (address in self.private or address in self.public)


def _read_address(text: str) -> IPv4Address | None:
    try:
        return IPv4Address(text)
    except AddressValueError:
        return None


def answer(query: bytes, names: Names, private_of: Callable[[str], str | None]) -> bytes | None:
    """Returns the response to a message, or None if the message is not a query. private_of: as for `look_up`."""
    try:
        message = dns.message.from_wire(query)
        reply = dns.message.make_response(message, recursion_available=True)
        [question] = message.question
    except (dns.exception.DNSException, ValueError) as error:
        log.info("invalid message: %r", error)
        return None
    record = names.look_up(question.name.to_text(omit_final_dot=True).lower(), private_of)
    if record is None:
        reply.set_rcode(dns.rcode.NXDOMAIN)
    elif question.rdtype in (dns.rdatatype.from_text(record.kind), dns.rdatatype.ANY):
        reply.answer.append(dns.rrset.from_text(question.name, TTL_S, "IN", record.kind, record.value))
    return reply.to_wire()


def serve_names(addresses: Iterable[str], names: Names, private_of: Callable[[str], str | None]) -> None:
    """Answers at these addresses, in separate threads. Uses only UDP, because all responses are short enough."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            """Sends the response to one message."""
            query, connection = self.request
            if reply := answer(query, names, private_of):
                connection.sendto(reply, self.client_address)

    for address in addresses:
        server = socketserver.UDPServer((address, PORT), Handler)
        threading.Thread(target=server.serve_forever, name="names", daemon=True).start()
