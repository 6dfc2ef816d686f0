"""Certificates and keys of a local federation, made for it and deleted with it.

The server's certificate is signed by an authority made for this one federation; nodes trust no
other.  Every node is registered with a key pair on the curve P-384.  All files are readable by
their owner only.
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from covertfl.files.disk import write_atomically

# Clocks of machines that trust each other may differ by this much.
CLOCK_ERROR = datetime.timedelta(hours=1)
OWNER_ONLY = 0o600
AUTHORITY = "authority of a local federation"


@dataclass(frozen=True)
class ServerCertificate:
    """Files with which a server proves its identity.

    Parameters
    ----------
    authority : certificate with which nodes check the server's
    certificate, key : the server's own
    """

    authority: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class NodeKey:
    """A node's key pair.

    Parameters
    ----------
    private : file, in OpenSSH format
    public : the public key in PEM format, as a registration sends it
    """

    private: Path
    public: bytes


def make_server_certificate(
    folder: Path,
    *,
    address: str = "127.0.0.1",
    valid: datetime.timedelta = datetime.timedelta(days=30),
) -> ServerCertificate:
    """Make an authority and a server's certificate for an address.

    The authority's private key is not stored, so nothing else can be signed with it.

    Parameters
    ----------
    folder : existing, readable by its owner only
    address : IP address of the server
    valid : how long, from now on
    """
    authority_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority = _sign_authority(authority_key, valid)
    server = _sign_server(server_key, authority_key, address, valid)
    files = ServerCertificate(
        folder / "authority.crt", folder / "server.crt", folder / "server.key"
    )
    _write(files.authority, authority.public_bytes(Encoding.PEM))
    _write(files.certificate, server.public_bytes(Encoding.PEM))
    key = server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _write(files.key, key)
    return files


def make_node_key(folder: Path, name: str) -> NodeKey:
    """Make a key pair for a node."""
    key, path = ec.generate_private_key(ec.SECP384R1()), folder / name
    _write(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return NodeKey(path, public)


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, content, mode=OWNER_ONLY)


def _begin(
    name: str, issuer: str, key: ec.EllipticCurvePrivateKey, valid: datetime.timedelta
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_ERROR)
        .not_valid_after(now + valid)
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _sign_authority(key: ec.EllipticCurvePrivateKey, valid: datetime.timedelta) -> x509.Certificate:
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        _begin(AUTHORITY, AUTHORITY, key, valid)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )


def _sign_server(
    key: ec.EllipticCurvePrivateKey,
    authority_key: ec.EllipticCurvePrivateKey,
    address: str,
    valid: datetime.timedelta,
) -> x509.Certificate:
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return (
        _begin(address, AUTHORITY, key, valid)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(names, critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .sign(authority_key, hashes.SHA384())
    )
