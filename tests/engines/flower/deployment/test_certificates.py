"""Certificates and keys are valid for one federation, and readable by their owner only."""

from __future__ import annotations

import datetime
import ssl
import stat
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key, load_ssh_private_key

from covertfl.engines.flower.deployment.certificates import make_node_key, make_server_certificate


def test_keys_are_on_p384_and_for_their_owner(tmp_path: Path) -> None:
    key = make_node_key(tmp_path, "node0")
    private = load_ssh_private_key(key.private.read_bytes(), None)
    public = load_pem_public_key(key.public)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(public, ec.EllipticCurvePublicKey)
    assert private.curve.name == "secp384r1"
    assert private.public_key() == public
    make_server_certificate(tmp_path)
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert not any(b"PRIVATE" in path.read_bytes() for path in tmp_path.glob("authority*"))


def shake_hands(tmp_path: Path, authority: Path, server: Any, name: str) -> None:
    """A TLS connection in memory, from one who trusts an authority to a server of a name."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.load_verify_locations(authority)
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(server.certificate, server.key)
    ends = [
        client_context.wrap_bio(back, there, server_hostname=name),
        server_context.wrap_bio(there, back, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


def test_certificates_are_good_for_their_address_and_authority_only(tmp_path: Path) -> None:
    other, late = tmp_path / "other", tmp_path / "late"
    other.mkdir()
    late.mkdir()
    server = make_server_certificate(tmp_path)
    shake_hands(tmp_path, server.authority, server, "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        shake_hands(tmp_path, server.authority, server, "127.0.0.2")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(tmp_path, make_server_certificate(other).authority, server, "127.0.0.1")
    expired = make_server_certificate(late, valid=-datetime.timedelta(seconds=5))
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake_hands(tmp_path, expired.authority, expired, "127.0.0.1")
