"""The sandbox's own certificate authority: made at each start, its key never written."""

import ssl

import trustme

from sandbox.marks import Place


def make_tls_context(place: Place, gateway: str) -> ssl.SSLContext:
    """A server's TLS context for `gateway`, and the authority's certificate in the sandbox's folder for its clients."""
    authority = trustme.CA(organization_name="cluster sandbox", organization_unit_name=place.id)
    authority.cert_pem.write_to_path(str(place.ca_file))
    place.ca_file.chmod(0o644)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(gateway, "localhost", "127.0.0.1").configure_cert(context)
    return context
