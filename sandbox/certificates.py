"""The sandbox's own certificate authority: made at each start, its key never written."""

import trustme

from sandbox.marks import Place


def write_certificates(place: Place, gateway: str) -> None:
    """Writes the authority's certificate for everybody, and the server's key and certificate for root alone.

    gateway: the server's address, which is what its certificate is for.
    """
    authority = trustme.CA(organization_name="cluster sandbox", organization_unit_name=place.id)
    authority.cert_pem.write_to_path(str(place.ca_file))
    place.ca_file.chmod(0o644)
    server = authority.issue_cert(gateway, "localhost", "127.0.0.1")
    place.server_pem.touch(mode=0o600)
    server.private_key_and_cert_chain_pem.write_to_path(str(place.server_pem))
