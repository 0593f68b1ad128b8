"""A worker by hand: leases jobs and settles them, without handlers.

    python examples/by_hand.py work        in one terminal, or in several
    python examples/by_hand.py send 5      in another

Each job counts the primes below a number. Ctrl-C in a worker gives its job back, uncounted; kill -9
leaves it to lapse, and another worker has it within two leases and a backoff.
"""

from __future__ import annotations

import random
import sys

from taskhive import Hive, LeaseLost

QUEUE = "by-hand"
VISIBILITY = 10.0
USAGE = "usage: by_hand.py work | by_hand.py send NUMBER"


def send(count: int) -> None:
    with Hive() as hive:
        jobs = hive.queue(QUEUE).dispatch_many(random.sample(range(10_000, 200_000), count))
        print(f"sent {len(jobs)} jobs; {hive.queue(QUEUE).stats().ready} wait")


def work() -> None:
    with Hive() as hive:
        q = hive.queue(QUEUE, visibility=VISIBILITY)
        print("waiting for jobs; Ctrl-C stops", flush=True)
        while lease := q.lease(wait=None):
            try:
                # Left by an exception it fails the job, left by Ctrl-C it releases it.
                with lease:
                    found = primes_below(lease.data)
                    lease.ack(found)
            except LeaseLost:
                # It took longer than the lease: somebody else has the job now, and the result is theirs.
                print(f"lost {lease.id}", flush=True)
            else:
                print(f"{lease.id}: {found} primes below {lease.data} (try {lease.tries})", flush=True)


def primes_below(limit: int) -> int:
    sieve = bytearray([1]) * limit
    sieve[:2] = b"\0\0"
    for n in range(2, int(limit**0.5) + 1):
        if sieve[n]:
            sieve[n * n :: n] = bytes(len(range(n * n, limit, n)))
    return sum(sieve)


def main(words: list[str]) -> int:
    match words:
        case ["work"]:
            try:
                work()
            except KeyboardInterrupt:
                print("stopped")
        case ["send", number] if number.isdigit() and 0 < int(number) <= 100_000:
            send(int(number))
        case _:
            print(USAGE, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
