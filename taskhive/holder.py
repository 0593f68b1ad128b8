"""What is held for a while by a token: leases of jobs, locks by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taskhive import codec, records
from taskhive.caller import DEAF_FOR, Caller
from taskhive.effects import AwaitMessage, Flow, Trouble
from taskhive.ids import nonce
from taskhive.parcels import Exchanged, Leased, Renewal, Settle


class Holder(Caller):
    """How jobs are leased, kept and settled; how a lock is taken and given back."""

    # Leases

    def exchange(
        self,
        queue: str,
        *,
        want: int = 0,
        lease_ms: int,
        worker: str,
        request: str | None = None,
        by_hand: bool = False,
        settles: Sequence[Settle] = (),
        renewals: Sequence[Renewal] = (),
    ) -> Flow[Exchanged]:
        """Settle, renew and lease in one round trip."""
        call = (request or nonce()).encode()
        keys = self.keys(queue)
        args = [
            call,
            b"0" if keys.is_lane else b"1",
            b"%d" % want,
            b"%d" % lease_ms,
            b"1" if by_hand else b"0",
            b"%d" % len(settles),
        ]
        for one in settles:
            args += (
                one.id.encode(),
                one.token.encode(),
                one.outcome.encode(),
                one.kind.encode(),
                b"%d" % one.delay_ms,
                b"%d" % one.ttl_ms,
                one.body,
                one.note,
            )
        for kept in renewals:
            started = b"1" if kept.started else b"0"
            args += (kept.id.encode(), kept.token.encode(), started, kept.progress)
        special = {"request": f"request:{worker}"}
        replies = yield from self.session.call(keys, "exchange", args, call, special=special)
        _, settled, renewed, rows, due_ms, paused = replies[0]
        return Exchanged(
            [word.decode() for word in settled],
            renewed,
            [
                Leased(records.text(row[0]), records.text(row[1]), row[2], row[3], _fields(row))
                for row in rows
            ],
            due_ms / 1000 if due_ms >= 0 else None,
            bool(paused),
        )

    def lease(self, queue: str, lease_ms: int, wait: float | None) -> Flow[Leased | None]:
        """Lease one job by hand; woken by the bell and by what falls due, never by polling."""
        clock = self.session.clock
        deadline = None if wait is None else clock() + wait
        worker = nonce()
        listening = False
        while True:
            got = yield from self._lease_one(queue, lease_ms, worker)
            if isinstance(got, Leased):
                return got
            left = None if deadline is None else deadline - clock()
            if left is not None and left <= 0:
                return None
            if not listening:
                # Looked at once more behind this: what came before the subscription rang for nobody.
                keys = self.keys(queue)
                yield from self.session.listen(keys.tag, keys.bell)
                listening = True
                continue
            # A network may swallow a bell without a word, so it is not trusted for ever.
            waits = [seconds for seconds in (left, got, DEAF_FOR) if seconds is not None]
            # A millisecond more: what is due at this instant is due for the next one's clock too.
            heard = yield AwaitMessage(min(waits) + 0.001)
            listening = not isinstance(heard, Trouble)

    def _lease_one(self, queue: str, lease_ms: int, worker: str) -> Flow[Leased | float | None]:
        """A lease with a payload that can be read, or how long it may take."""
        settles: tuple[Settle, ...] = ()
        while True:
            got = yield from self.exchange(
                queue, want=1, lease_ms=lease_ms, worker=worker, by_hand=True, settles=settles
            )
            if not got.leases:
                return got.due_in
            job = got.leases[0]
            try:
                codec.decode_call(job.payload)
                return job
            except codec.Sealed:
                return job
            except codec.BadPayload as error:
                # For good, with its reason: tried again it would be as unreadable.
                body = records.encode_error("BadPayload", str(error))
                settles = (Settle(job.id, job.token, "fail", "permanent", body=body),)

    def settle(self, queue: str, settle: Settle) -> Flow[str]:
        """Settle one lease: OK, DUP or STALE."""
        done = yield from self.exchange(
            queue, lease_ms=1, worker=nonce(), by_hand=True, settles=[settle]
        )
        return done.settled[0]

    def renew(self, queue: str, renewal: Renewal, lease_ms: int) -> Flow[int]:
        """Renew one lease: 1 kept, 2 kept but cancelled, 3 kept and asked to stop, 0 lost."""
        done = yield from self.exchange(
            queue, lease_ms=lease_ms, worker=nonce(), by_hand=True, renewals=[renewal]
        )
        return done.renewed[0]

    # Locks

    def lock(self, name: str, token: str, length_ms: int, wait: float | None) -> Flow[float | None]:
        """Take a lock; the moment it was asked for, on our clock, or None if it did not come free."""
        clock = self.session.clock
        deadline = None if wait is None else clock() + wait
        keys = self.keys(name)
        listening = False
        while True:
            asked = clock()
            is_ours, lapses_ms = yield from self._lock(name, b"take", token, length_ms)
            if is_ours:
                return asked
            left = None if deadline is None else deadline - clock()
            if left is not None and left <= 0:
                return None
            if not listening:
                # And looked at once more: what was given back before this rang for nobody.
                yield from self.session.listen(keys.tag, f"{keys.name('lock')}:bell")
                listening = True
                continue
            waits = [seconds for seconds in (left, lapses_ms / 1000, DEAF_FOR) if seconds is not None]
            listening = not isinstance((yield AwaitMessage(max(0.0, min(waits)) + 0.001)), Trouble)

    def keep_lock(self, name: str, token: str, length_ms: int) -> Flow[bool]:
        """Renew a lock; False if it is not the token's any more."""
        return (yield from self._lock(name, b"keep", token, length_ms))[0]

    def unlock(self, name: str, token: str) -> Flow[bool]:
        """Give a lock back; False if it was not the token's any more."""
        return (yield from self._lock(name, b"free", token, 1))[0]

    def _lock(self, name: str, what: bytes, token: str, length_ms: int) -> Flow[tuple[bool, int]]:
        _, is_ours, lapses_ms = yield from self._call(
            name, "lock", what, token.encode(), b"%d" % length_ms
        )
        return is_ours == 1, lapses_ms


def _fields(row: Any) -> dict[bytes, Any]:
    return records.table(row[4]) if len(row) > 4 else {}
