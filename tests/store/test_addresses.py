"""Every kind of URL against the kind of server it means."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from taskhive import ConfigurationError, Hive, RedisUnavailable, ServerRefused
from tests.servers import Server, free_port, programs, running, until


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="th-") as directory:
        yield Path(directory)


def round_trip(hive: Hive) -> None:
    q = hive.queue("q")
    job = q.dispatch("a.png", width=64)
    lease = q.lease(visibility=60, wait=5)
    assert lease is not None
    lease.ack("done")
    assert (lease.id, job.info().result) == (job.id, "done")


# One server


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
def test_one_server_by_host_port_and_database(place: Path, scheme: str) -> None:
    port = free_port()
    with running(programs()["valkey"], place, port) as server:
        with Hive(f"{scheme}://127.0.0.1:{port}/3") as hive:
            round_trip(hive)
        with Hive(f"{scheme}://localhost:{port}?db=4&socket_timeout=2") as hive:
            round_trip(hive)
        with server.client() as admin:
            facts = admin.info("keyspace")
            assert sorted(facts) == ["db3", "db4"]


def test_a_unix_socket_with_user_password_and_database(server: Server, prefix: str) -> None:
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "u@x", "on", ">p:/?#", "~*", "&*", "+@all")
        try:
            with Hive(f"unix://u%40x:p%3A%2F%3F%23@{server.socket}?db=2", prefix=prefix) as hive:
                round_trip(hive)
        finally:
            admin.execute_command("ACL", "DELUSER", "u@x")


def test_a_client_of_ones_own_is_used_and_never_closed(server: Server, prefix: str) -> None:
    client = redis.Redis(unix_socket_path=str(server.socket), db=5)
    with Hive(client=client, prefix=prefix) as hive:
        round_trip(hive)
    assert client.ping()
    assert client.exists(f"{prefix}:{{q}}:meta")
    client.close()
    with pytest.raises(ConfigurationError, match="Give one of them"):
        Hive("redis://localhost", client=client)


# TLS


@pytest.fixture
def certificates(place: Path) -> Path:
    """A CA, and a certificate of 127.0.0.1 that it has signed."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl program to make certificates with")

    def run(*words: str) -> None:
        subprocess.run([openssl, *words], cwd=place, check=True, capture_output=True)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    # As strict as Python 3.13 reads the standard.
    is_ca = ("-addext", "keyUsage=critical,keyCertSign", "-subj", "/CN=ca", "-days", "2")
    run("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.crt", *is_ca)
    run("req", *curve, "-keyout", "s.key", "-out", "s.csr", "-subj", "/CN=server")
    (place / "names").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
    signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
    run("x509", "-req", "-in", "s.csr", *signed, "-out", "s.crt")
    return place


def with_tls(place: Path, port: int) -> Server:
    """A server with TLS of whichever program can do it."""
    files = ("--tls-cert-file", f"{place}/s.crt", "--tls-key-file", f"{place}/s.key")
    extra = ("--tls-port", str(port), *files, "--tls-ca-cert-file", f"{place}/ca.crt")
    for program in programs().values():
        server = Server(program, place, 0, (*extra, "--tls-auth-clients", "no"))
        try:
            return server.start()
        except AssertionError:  # it ended at once: built without TLS
            server.stop()
    pytest.skip("no server program here was built with TLS")


def test_tls_is_verified_unless_one_says_otherwise(certificates: Path) -> None:
    port = free_port()
    server = with_tls(certificates, port)
    try:
        url = f"rediss://127.0.0.1:{port}"
        with Hive(f"{url}?ssl_ca_certs={certificates}/ca.crt") as hive:
            round_trip(hive)
        with Hive(url, client_options={"ssl_ca_certs": f"{certificates}/ca.crt"}) as hive:
            round_trip(hive)
        with Hive(url) as hive, pytest.raises(ServerRefused, match="Name the CA"):
            hive.ping()
        by_name = f"rediss://localhost:{port}?ssl_ca_certs={certificates}/ca.crt"
        with Hive(by_name) as hive, pytest.raises(ServerRefused, match="not valid for 'localhost'"):
            hive.ping()
        with Hive(f"{by_name}&ssl_check_hostname=false") as hive:
            round_trip(hive)
        with Hive(f"{url}?ssl_cert_reqs=none") as hive:
            round_trip(hive)
    finally:
        server.stop()


# Sentinel


def sentinel(program: Path, place: Path, primary: Server) -> Server:
    place.mkdir()
    port = free_port()
    config = place / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {place}\nunixsocket {place}/s\n"
        f"sentinel monitor hive 127.0.0.1 {primary.port} 1\n"
        "sentinel down-after-milliseconds hive 400\nsentinel failover-timeout hive 5000\n"
    )
    made = Server(program, place, port)
    made.process = subprocess.Popen(
        [str(program), str(config), "--sentinel"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    until(made.answers, "the sentinel answers")
    return made


def knows_a_replica(admin: redis.Redis) -> bool:
    known: Any = admin.sentinel_slaves("hive")
    return bool(known) and known[0]["slave-priority"] > 0 and known[0]["master-link-status"] == "ok"


def test_a_sentinel_names_the_primary_and_after_its_death_the_next_one(place: Path) -> None:
    """What was confirmed by a replica survives the primary; dispatching goes on by itself."""
    program = programs().get("redis", programs()["valkey"])
    folders = [place / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    primary = Server(program, folders[0], free_port()).start()
    replica = Server(
        program, folders[1], free_port(), ("--replicaof", f"127.0.0.1 {primary.port}")
    ).start()
    watch = None
    acknowledged: list[str] = []
    enough = threading.Event()
    try:
        with replica.client() as admin:
            until(lambda: admin.info("replication")["master_link_status"] == "up", "the replica is")
        watch = sentinel(program, place / "w", primary)
        with watch.client() as admin:
            until(lambda: knows_a_replica(admin), "the sentinel knows the replica")
        url = f"sentinel://127.0.0.1:{free_port()},127.0.0.1:{watch.port}/hive"  # one of them is away
        with Hive(url, connect_timeout=25) as hive:
            q = hive.queue("q").options(durable=True)

            def produce() -> None:
                for number in range(40):
                    q = hive.queue("q")
                    # After the failover there is no replica left to confirm anything.
                    if not enough.is_set():
                        q = q.options(durable=True)
                    acknowledged.append(q.dispatch(number).id)
                    if number == 19:
                        enough.set()

            thread = threading.Thread(target=produce)
            thread.start()
            enough.wait(30)
            primary.kill()
            thread.join(30)
            assert len(acknowledged) == 40
            stats = q.stats()
            assert stats.ready >= 20
            lost = [id for id in acknowledged[:20] if hive.job("q", id).state() != "ready"]
            assert lost == []
        with replica.client() as admin:
            assert admin.info("replication")["role"] == "master"
    finally:
        for server in (primary, replica, watch):
            if server is not None:
                server.stop()


def test_a_service_that_no_sentinel_knows_is_an_error_that_says_so(place: Path) -> None:
    program = programs()["valkey"]
    (place / "a").mkdir()
    with running(program, place / "a", free_port()) as primary:
        watch = sentinel(program, place / "w", primary)
        try:
            url = f"sentinel://127.0.0.1:{watch.port}/other"
            with (
                Hive(url, connect_timeout=0.2) as hive,
                pytest.raises(RedisUnavailable, match="does not know"),
            ):
                hive.ping()
        finally:
            watch.stop()


def test_a_server_that_is_no_sentinel_is_an_error_that_says_so(server: Server, place: Path) -> None:
    with (
        running(server.program, place, free_port()) as plain,
        Hive(f"sentinel://127.0.0.1:{plain.port}/hive", connect_timeout=1) as hive,
        pytest.raises(ServerRefused, match="unknown command"),
    ):
        hive.ping()
