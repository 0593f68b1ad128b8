"""Clusters of real servers for tests: every slot served, no replicas."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.servers import Server, free_port, until

SLOTS = 16384


def node(program: Path, directory: Path) -> Server:
    directory.mkdir()
    # The bus would be port + 10000, which may be over the end.
    options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    return Server(program, directory, free_port(), (*options, "--cluster-node-timeout", "2000"))


@contextlib.contextmanager
def cluster(program: Path, place: Path, size: int = 1) -> Iterator[list[Server]]:
    """`size` servers that share the slots evenly and agree about it."""
    nodes = [node(program, place / str(number)) for number in range(size)]
    try:
        for one in nodes:
            one.start()
        share = SLOTS // size
        for number, one in enumerate(nodes):
            last = SLOTS - 1 if number == size - 1 else (number + 1) * share - 1
            ask(one, "CLUSTER", "ADDSLOTSRANGE", number * share, last)
            ask(one, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number:
                bus = nodes[0].extra[3]
                ask(one, "CLUSTER", "MEET", "127.0.0.1", nodes[0].port, bus)
        until(lambda: all(settled(one, size) for one in nodes), "the servers agree")
        yield nodes
    finally:
        for one in nodes:
            one.stop()


def ask(server: Server, *words: object) -> Any:
    with server.client() as client:
        return client.execute_command(*words)


def settled(server: Server, size: int) -> bool:
    facts = ask(server, "CLUSTER", "INFO").decode()
    return "cluster_state:ok" in facts and f"cluster_known_nodes:{size}\r" in facts


def move_slot(nodes: list[Server], slot: int, source: Server, target: Server) -> None:
    """Give one slot with all its keys to another server, as an operator would."""
    names = {one.port: ask(one, "CLUSTER", "MYID").decode() for one in nodes}
    ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", names[source.port])
    ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", names[target.port])
    while keys := ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 100):
        ask(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
    for one in (target, source, *nodes):
        ask(one, "CLUSTER", "SETSLOT", slot, "NODE", names[target.port])
