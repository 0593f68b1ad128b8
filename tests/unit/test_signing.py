"""Signatures: what is not signed for exactly this place is refused before any of it is parsed."""

from __future__ import annotations

import base64
import hmac
import os
import pickle
import random
import stat
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskhive import ConfigurationError, Hive, codec, payloads, pickles, secret, signing
from taskhive.codec import BadPayload, decode_call
from taskhive.signing import BadSignature, KeyRing

SECRET = "s" * 32
OTHER = "o" * 32
PLACE = ("calls", "job-1")


@pytest.fixture
def ring() -> KeyRing:
    return KeyRing([SECRET])


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every pickle that is read."""
    seen: list[bytes] = []
    real = pickle.loads

    def loads(data: bytes, **options: Any) -> Any:
        seen.append(data)
        return real(data, **options)

    monkeypatch.setattr(pickle, "loads", loads)
    return seen


class Bomb:
    """Runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_the_signature_is_an_hmac_of_the_derived_key(ring: KeyRing) -> None:
    key = b"k" * 32
    inner, outer = signing._states(key)
    inner.update(b"words")
    outer.update(inner.digest())
    assert outer.digest() == hmac.digest(key, b"words", "sha256")


def refuses(ring: KeyRing, data: bytes, queue: str = "calls", job_id: str = "job-1") -> bool:
    try:
        pickles.decode_call(ring, queue, job_id, data)
    except BadSignature:
        return True
    return False


def test_a_call_a_result_and_an_exception_come_back_as_they_were(ring: KeyRing) -> None:
    call = ((1, "a", {2: {3}}), {"f": max})
    sealed = pickles.encode_call(ring, *PLACE, *call, 1 << 20)
    assert pickles.decode_call(ring, *PLACE, sealed) == call
    double = pickles.decode_call(
        ring, *PLACE, pickles.encode_call(ring, *PLACE, (lambda x: 2 * x,), {}, 1 << 20)
    )[0][0]
    assert double(4) == 8
    result = pickles.encode_result(ring, *PLACE, {1, 2})
    assert pickles.decode_result(ring, *PLACE, result) == {1, 2}
    text = pickles.encode_exception(ring, *PLACE, KeyError((1, 2)))
    assert repr(pickles.decode_exception(ring, *PLACE, text)) == "KeyError((1, 2))"


class Local:
    """A class of a script, as it were."""


def test_data_is_pickled_plainly_and_what_a_plain_pickle_would_only_name_goes_by_value() -> None:
    Local.__module__ = "__main__"
    for data in (None, [1, 2.5, "a", b"b", True], {"a": ({1}, frozenset({2}))}, bytearray(b"c")):
        made = pickles.dumps(data, "it")
        assert made == pickle.dumps(data, pickle.HIGHEST_PROTOCOL)
        assert pickles.loads(made, "it") == data
    for value in ([lambda: 1], {"deep": [(Local,)]}, Local()):
        made = pickles.dumps(value, "it")
        assert b"cloudpickle" in made
        assert type(pickles.loads(made, "it")) is type(value) or isinstance(value, Local)


def test_every_flipped_bit_is_noticed_and_nothing_is_parsed(ring: KeyRing, parsed: list[bytes]) -> None:
    sealed = pickles.encode_call(ring, *PLACE, ("a" * 200,), {}, 1 << 20)
    rng = random.Random(1)
    bits = rng.sample(range(8 * len(sealed)), 500)
    for bit in bits:
        flipped = bytearray(sealed)
        flipped[bit // 8] ^= 1 << bit % 8
        assert refuses(ring, bytes(flipped)), bit
    assert parsed == []
    assert not refuses(ring, sealed)


def test_a_signed_body_cannot_be_moved(ring: KeyRing, parsed: list[bytes]) -> None:
    sealed = pickles.encode_call(ring, *PLACE, (1,), {}, 1 << 20)
    assert refuses(ring, sealed, queue="other")
    assert refuses(ring, sealed, job_id="job-2")
    assert refuses(ring, sealed, queue="call", job_id="sjob-1")  # the same letters, cut elsewhere
    for read in (pickles.decode_result, lambda *a: pickles.decode_call(*a)):
        result = pickles.encode_result(ring, *PLACE, 1)
        other = sealed if read is pickles.decode_result else result
        with pytest.raises(BadSignature):
            read(ring, *PLACE, other)
    exception = pickles.encode_exception(ring, *PLACE, KeyError("x"))
    assert exception is not None
    assert refuses(ring, base64.b64decode(exception))
    first, second = (pickles.encode_call(ring, *PLACE, (n,), {}, 1 << 20) for n in (1, 2))
    head = len(first) - len(ring.open("call", *PLACE, first))
    assert refuses(ring, first[:head] + second[head:])
    assert parsed == []


@pytest.mark.parametrize(
    "make",
    [
        lambda ring, bomb: bomb,
        lambda ring, bomb: b"p" + bomb,
        lambda ring, bomb: b"p1" + bomb,
        lambda ring, bomb: b"p1" + b"\0" * 48 + bomb,
        lambda ring, bomb: b"p1" + b"        " + b"\0" * 40 + bomb,
        lambda ring, bomb: ring.seal("call", *PLACE, b"")[:50] + bomb,
        lambda ring, bomb: KeyRing([OTHER]).seal("call", *PLACE, bomb),
        lambda ring, bomb: b"j" + ring.seal("call", *PLACE, bomb)[1:],
        lambda ring, bomb: b"p2" + ring.seal("call", *PLACE, bomb)[2:],
        lambda ring, bomb: b"p",
        lambda ring, bomb: b"",
        lambda ring, bomb: b"j[1]",
        lambda ring, bomb: b"r" + bomb,
    ],
)
def test_forged_and_unsigned_payloads_are_refused_unread(
    ring: KeyRing, make: Callable[[KeyRing, bytes], bytes], tmp_path: Path, parsed: list[bytes]
) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "canary"))
    assert refuses(ring, make(ring, bomb))
    assert parsed == []
    assert not (tmp_path / "canary").exists()


def test_a_handler_of_data_refuses_even_a_well_signed_pickle(ring: KeyRing) -> None:
    with pytest.raises(BadPayload, match="data only"):
        decode_call(pickles.encode_call(ring, *PLACE, (1,), {}, 1 << 20))


def test_an_envelope_is_not_good_for_ever(ring: KeyRing, monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = ring.seal("call", *PLACE, b"x")
    for shift, fits in ((0, True), (signing.MAX_AGE - 60, True), (signing.MAX_AGE + 60, False)):
        now = time.time() + shift
        monkeypatch.setattr(time, "time", lambda now=now: now)
        assert fits == (not _refused(ring, sealed))
        monkeypatch.undo()


def test_a_job_for_later_is_not_too_old_when_its_time_has_come(
    ring: KeyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    hive = Hive("redis://localhost:1", secret=SECRET)
    late = time.time() + 2 * signing.MAX_AGE
    items = [
        hive._core.item(hive.queue("q").options(**options)._options, (1,), {}, "q")
        for options in (
            {"run_at": late},
            {"delay": 2 * signing.MAX_AGE},
            {"run_at": late, "codec": "pickle"},
        )
    ]
    monkeypatch.setattr(time, "time", lambda: late + 60)
    for item in items:
        read = pickles.decode_call if item.payload[:1] == b"p" else payloads.decode_call
        assert read(ring, "q", item.id, item.payload) == ((1,), {})
    monkeypatch.setattr(time, "time", lambda: late + signing.MAX_AGE + 60)
    for item in items:
        read = pickles.decode_call if item.payload[:1] == b"p" else payloads.decode_call
        with pytest.raises(BadSignature, match="ago"):
            read(ring, "q", item.id, item.payload)


# Data


@pytest.fixture
def read_as_data(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """All JSON that is parsed."""
    seen: list[bytes] = []
    real = codec._parse

    def parse(body: bytes) -> Any:
        seen.append(body)
        return real(body)

    monkeypatch.setattr(codec, "_parse", parse)
    return seen


def data_call(ring: KeyRing | None, *args: Any, **kwargs: Any) -> bytes:
    return payloads.sealed(ring, "call", *PLACE, codec.encode_call(args, kwargs))


def data_result(ring: KeyRing | None, value: Any) -> bytes:
    return payloads.sealed(ring, "result", *PLACE, codec.encode_result(value))


def test_data_is_signed_where_there_is_a_secret_and_only_there(ring: KeyRing) -> None:
    for args, kwargs in (((1, [2]), {}), ((), {"a": "b"})):
        sealed, plain = data_call(ring, *args, **kwargs), data_call(None, *args, **kwargs)
        assert plain == codec.encode_call(args, kwargs)
        assert sealed[codec.ENVELOPE :] == plain
        assert payloads.decode_call(ring, *PLACE, sealed) == (args, kwargs)
        # It is data: who has no secret reads it as if it were not signed.
        assert payloads.decode_call(None, *PLACE, sealed) == (args, kwargs)
    for value in (None, {"a": 1}, b"bytes"):
        result = data_result(ring, value)
        assert payloads.decode_result(ring, *PLACE, result) == value
        assert payloads.decode_result(None, *PLACE, result) == value


def test_every_flipped_bit_of_data_is_noticed_and_nothing_is_parsed(
    ring: KeyRing, read_as_data: list[bytes]
) -> None:
    sealed = data_call(ring, "a" * 200)
    for bit in random.Random(2).sample(range(8 * len(sealed)), 500):
        flipped = bytearray(sealed)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadSignature):
            payloads.decode_call(ring, *PLACE, bytes(flipped))
    assert read_as_data == []


def test_signed_data_cannot_be_moved_or_made_something_else(
    ring: KeyRing, read_as_data: list[bytes], parsed: list[bytes]
) -> None:
    sealed, result = data_call(ring, 1), data_result(ring, 1)
    pickled = pickles.encode_call(ring, *PLACE, (1,), {}, 1 << 20)
    for queue, job_id in (
        ("other", "job-1"),
        ("calls", "job-2"),
        ("call", "sjob-1"),
        ("calls:fail", "x"),
    ):
        with pytest.raises(BadSignature):
            payloads.decode_call(ring, queue, job_id, sealed)
    for forged in (
        result,
        pickled,
        b"s" + pickled[1:],
        sealed[codec.ENVELOPE :],
        b"",
        b"s",
        b"s1" + b"\0" * 48 + b"j[1]",
        KeyRing([OTHER]).seal("call", *PLACE, b"j[1]", signing.DATA),
    ):
        with pytest.raises(BadSignature):
            payloads.decode_call(ring, *PLACE, forged)
    for forged in (sealed, b"j1", b"", b"s" + sealed):
        with pytest.raises(BadSignature):
            payloads.decode_result(ring, *PLACE, forged)
    assert refuses(ring, sealed)
    assert refuses(ring, b"p" + sealed[1:])
    assert (read_as_data, parsed) == ([], [])


def test_data_that_is_signed_twice_is_peeled_once() -> None:
    with pytest.raises(BadPayload, match="unknown codec"):
        codec.decode_call(b"s" * 1_000_000)


def test_a_failure_job_has_the_arguments_of_the_job_that_failed(ring: KeyRing) -> None:
    assert payloads.signed_for("calls:fail", "x", "job-1") == PLACE
    assert payloads.signed_for("calls", "x", "job-1") == ("calls", "x")  # no failure job is there
    assert payloads.signed_for("calls", "x", None) == ("calls", "x")


def test_a_secret_is_introduced_and_left_out_for_data_by_a_word_beside_it(ring: KeyRing) -> None:
    both = KeyRing([SECRET, "accept-unsigned"])
    plain, sealed = data_call(None, 1), data_call(both, 1)
    for one in (both, KeyRing.from_portable(both.portable())):
        assert payloads.decode_call(one, *PLACE, plain) == ((1,), {})
        assert payloads.decode_call(one, *PLACE, sealed) == ((1,), {})
        assert payloads.decode_result(one, *PLACE, b"") is None
        with pytest.raises(BadSignature):
            payloads.decode_call(one, "other", "job-1", sealed)
    assert payloads.decode_call(ring, *PLACE, sealed) == ((1,), {})
    only = KeyRing([SECRET, "pickles-only"])
    for one in (only, KeyRing.from_portable(only.portable())):
        assert data_call(one, 1) == plain
        assert payloads.decode_call(one, *PLACE, plain) == ((1,), {})
    assert refuses(only, plain)  # of pickles nothing changes
    with pytest.raises(ConfigurationError, match="there is none"):
        KeyRing(["accept-unsigned"])


def _refused(ring: KeyRing, sealed: bytes) -> bool:
    try:
        ring.open("call", *PLACE, sealed)
    except BadSignature:
        return True
    return False


def test_keys_are_rotated_without_refusing_a_good_job() -> None:
    only_old, added, promoted, dropped = (
        KeyRing(words) for words in ([OTHER], [OTHER, SECRET], [SECRET, OTHER], [SECRET])
    )
    # Some programs are deployed before others: what either signs, the other can read.
    for before, after in ((only_old, added), (added, promoted)):
        for writer in (before, after):
            sealed = writer.seal("call", *PLACE, b"x")
            assert [ring.open("call", *PLACE, sealed) for ring in (before, after)] == [b"x", b"x"]
            data = data_call(writer, 1)
            for reader in (before, after):
                assert payloads.decode_call(reader, *PLACE, data) == ((1,), {})
    # The old key is dropped when no job that it signed is left.
    assert dropped.open("call", *PLACE, promoted.seal("call", *PLACE, b"x")) == b"x"
    assert _refused(dropped, only_old.seal("call", *PLACE, b"x"))


@pytest.mark.parametrize("value", ["short", "x" * 31, b"", [], [SECRET, "short"], 3, [3]])
def test_a_weak_secret_is_refused_where_it_is_given(value: Any) -> None:
    with pytest.raises((ConfigurationError, TypeError)):
        Hive("redis://localhost", secret=value)


def test_without_a_secret_there_is_no_pickle() -> None:
    hive = Hive("redis://localhost:1")
    with pytest.raises(ConfigurationError, match="TASKHIVE_SECRET"):
        hive.queue("q").options(codec="pickle").dispatch(1)


def test_a_secret_is_never_shown(ring: KeyRing) -> None:
    hive = Hive("redis://localhost:1", secret=SECRET)
    shown = f"{hive!r} {hive.settings!r} {ring!r} {ring} {hive._core.ring()!r}"
    assert SECRET not in shown
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(ring)


def test_secrets_come_from_the_environment_or_a_file(tmp_path: Path) -> None:
    def nowhere() -> Path | None:
        return None

    assert secret.find({}, nowhere) is None
    found = secret.find({"TASKHIVE_SECRET": f"{SECRET}, {OTHER}"}, nowhere)
    assert found is not None
    assert len(found) == 2
    file = tmp_path / "keys"
    file.write_text(f"{SECRET}\n{OTHER}\n")
    same = secret.find({"TASKHIVE_SECRET_FILE": str(file)}, nowhere)
    assert same is not None
    assert same.open("call", *PLACE, found.seal("call", *PLACE, b"x")) == b"x"
    with pytest.raises(ConfigurationError, match="cannot be read"):
        secret.find({"TASKHIVE_SECRET_FILE": str(tmp_path / "none")}, nowhere)


def test_the_embedded_server_has_a_secret_of_its_own_that_others_cannot_read(tmp_path: Path) -> None:
    home = tmp_path / "home"
    first = secret.find({}, lambda: home)
    second = secret.find({}, lambda: home)
    assert first is not None
    assert second is not None
    assert second.open("call", *PLACE, first.seal("call", *PLACE, b"x")) == b"x"
    assert not first.signs_data  # who can write to this server can read the secret, too
    file = home / secret.FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in home.iterdir()] == [secret.FILE]
    file.chmod(0o644)
    with pytest.raises(ConfigurationError, match="others"):
        secret.find({}, lambda: home)


@pytest.fixture
def entrusted() -> Iterator[None]:
    yield
    secret._entrusted, secret._is_child = None, False


def test_a_child_uses_what_it_was_entrusted_with_and_looks_nowhere_else(entrusted: None) -> None:
    secret.entrust(None)
    assert secret.find({"TASKHIVE_SECRET": SECRET}, lambda: None) is None
    secret.entrust(KeyRing.from_portable(KeyRing([SECRET]).portable()))
    found = secret.find({}, lambda: None)
    assert found is not None
    assert found.open("call", *PLACE, KeyRing([SECRET]).seal("call", *PLACE, b"x")) == b"x"


@pytest.mark.parametrize(
    "data",
    [
        b"j" + b"[" * 100_000 + b"]" * 100_000,
        b"j" + b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b"j[" + b"9" * 1_000_000 + b"]",
        b'j[{"a":1,"a":2}]',
        b"j[NaN]",
        b"j[Infinity]",
        b'k[[],{"a":' + b"[" * 5000 + b"]" * 5000 + b"}]",
        b"j" + b'"' + b"\xff" * 1000 + b'"',
        b"x[1]",
        b"",
        b"j" + b"[" * 4_000_000,
        b"j" + b'[{"a":' * 700_000,
        b"j[" + b"-" + b"1" * 4_000_000 + b"]",
        b"j[1e" + b"9" * 4_000_000 + b"]",
        b'j["' + b"\\ud800" * 700_000 + b'"]',
        b"j[" + b"[[]]," * 200_000 + b"NaN]",
    ],
    ids=range(16),
)
def test_bombs_of_size_depth_and_digits_are_refused_in_little_memory(data: bytes, ring: KeyRing) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BadPayload):
            decode_call(data)
        with pytest.raises(BadPayload):
            codec.decode_result(data.replace(b"k[[],", b"j[", 1))
        with pytest.raises(BadSignature):
            payloads.decode_call(ring, *PLACE, data)
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024 * 1024
    finally:
        tracemalloc.stop()
