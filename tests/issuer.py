"""An issuer of tokens for tests: an https server on loopback with a discovery document and keys, and what signs."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.securing import HOST, Certs

AUDIENCE = "tritonmq"

_MAKERS: dict[str, tuple[Callable[[], Any], Any]] = {
    "RS256": (lambda: rsa.generate_private_key(65_537, 2_048), RSAAlgorithm),
    "ES256": (lambda: ec.generate_private_key(ec.SECP256R1()), ECAlgorithm),
    "EdDSA": (ed25519.Ed25519PrivateKey.generate, OKPAlgorithm),
}


class Key:
    """A key of the issuer. `public`: as it is published."""

    def __init__(self, kid: str, algorithm: str = "ES256") -> None:
        make, kind = _MAKERS[algorithm]
        self.kid, self.algorithm, self.private = kid, algorithm, make()
        self.public: dict[str, Any] = {**kind.to_jwk(self.private.public_key(), as_dict=True), "kid": kid, "use": "sig"}

    def sign(self, claims: dict[str, Any], **headers: Any) -> str:
        return jwt.encode(claims, self.private, self.algorithm, headers={"kid": self.kid, **headers})


class Issuer:
    """`keys`: those that it publishes. `asked`: paths that were asked for. `answer`: replaces what is at a path."""

    def __init__(self, directory: Path) -> None:
        self.certs = Certs(directory)
        self.keys = [Key("one")]
        self.asked: list[str] = []
        self.answer: dict[str, Callable[[Any], None]] = {}
        self.document: dict[str, Any] = {}

    @property
    def ca(self) -> Path:
        return self.certs.path / "ca.crt"

    def claims(self, **more: Any) -> dict[str, Any]:
        now = time.time()
        made = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "etl",
            "exp": now + 300,
            "nbf": now - 1,
            "iat": now - 1,
            **more,
        }
        return {name: value for name, value in made.items() if value is not None}

    def token(self, **more: Any) -> str:
        return self.keys[0].sign(self.claims(**more))

    def __enter__(self) -> Issuer:
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked.append(self.path)
                if self.path in issuer.answer:
                    issuer.answer[self.path](self)
                    return
                keys = {"keys": [key.public for key in issuer.keys]}
                self.say(issuer.document if self.path.endswith("openid-configuration") else keys)

            def say(self, document: Any, status: int = 200) -> None:
                data = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
        self._server.daemon_threads = True
        pair = self.certs.authority.broker(1, [HOST]).write(self.certs.path, "issuer")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*pair)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://{HOST}:{self._server.server_port}/realm"
        self.document = {"issuer": self.url, "jwks_uri": f"{self.url}/keys", "extra": [1, {"a": None}]}
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
