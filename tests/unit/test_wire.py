"""Frames between processes: whole ones come out whole, whatever the pieces; the rest is refused."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskhive.resp import pack, pack_words
from taskhive.wire import HEAD_SIZE, BadFrame, Kind, Reader, frame, json_body, json_frame, read_json

FRAMES = st.lists(st.tuples(st.sampled_from(Kind), st.binary(max_size=80)), max_size=8)


@given(FRAMES, st.lists(st.integers(1, 50), min_size=1, max_size=40))
def test_frames_come_out_as_they_went_in_whatever_pieces_they_come_in(
    frames: list[tuple[Kind, bytes]], pieces: list[int]
) -> None:
    stream = b"".join(frame(kind, body) for kind, body in frames)
    reader, found, turn = Reader(), [], 0
    while stream:
        size = pieces[turn % len(pieces)]
        found += list(reader.feed(stream[:size]))
        stream, turn = stream[size:], turn + 1
    assert found == frames


@given(st.sampled_from(Kind), st.binary(min_size=1, max_size=40), st.data())
def test_one_bit_turned_over_is_noticed_or_waited_for(kind: Kind, body: bytes, data: Any) -> None:
    """A longer length waits for more; anything else is refused. A kind may turn into another one."""
    whole = bytearray(frame(kind, body))
    place = data.draw(st.integers(0, len(whole) - 1).filter(lambda at: at != HEAD_SIZE - 1))
    whole[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        assert list(Reader().feed(bytes(whole))) == []
    except BadFrame:
        pass


@given(st.binary(max_size=200))
def test_noise_is_refused_or_waited_for(noise: bytes) -> None:
    try:
        list(Reader().feed(noise))
    except BadFrame:
        pass


@pytest.mark.parametrize(
    "bad",
    [
        struct.pack("!IIB", 2**32 - 1, 0, Kind.RUN),
        struct.pack("!IIB", 1, 0, Kind.RUN) + b"x",
        struct.pack("!IIB", 0, zlib.crc32(b""), 255),
        struct.pack("!IIB", 0, zlib.crc32(b""), 0),
    ],
    ids=["too long", "a wrong checksum", "an unknown kind", "kind 0"],
)
def test_what_is_no_frame_is_refused_and_what_came_before_it_was_read(bad: bytes) -> None:
    reader = Reader()
    frames = reader.feed(frame(Kind.READY, b"ok") + bad)
    assert next(frames) == (Kind.READY, b"ok")
    with pytest.raises(BadFrame):
        next(frames)


def test_the_limit_of_a_frame_is_exact() -> None:
    assert list(Reader(limit=3).feed(frame(Kind.RUN, b"abc"))) == [(Kind.RUN, b"abc")]
    with pytest.raises(BadFrame):
        list(Reader(limit=3).feed(frame(Kind.RUN, b"abcd")))


@given(st.dictionaries(st.text(), st.integers() | st.text(), max_size=4), st.binary(max_size=40))
def test_json_and_the_bytes_behind_it_come_out_as_they_went_in(value: Any, tail: bytes) -> None:
    assert read_json(json_body(value, tail)) == (value, tail)
    ((kind, body),) = Reader().feed(json_frame(Kind.PROGRESS, value, tail))
    assert (kind, read_json(body)) == (Kind.PROGRESS, (value, tail))


@pytest.mark.parametrize("body", [b"", b"\n", b"{", b"\xff\n", b"[" * 100_000 + b"\n", b"nope\n{}"])
def test_a_body_that_is_no_json_is_a_bad_frame(body: bytes) -> None:
    with pytest.raises(BadFrame):
        read_json(body)


@pytest.mark.parametrize(
    ("words", "packed"),
    [
        ((b"PING",), b"*1\r\n$4\r\nPING\r\n"),
        ((b"SET", b"", b"\r\n"), b"*3\r\n$3\r\nSET\r\n$0\r\n\r\n$2\r\n\r\n\r\n"),
        ((), b"*0\r\n"),
    ],
)
def test_a_command_is_packed_as_the_server_reads_it(words: tuple[bytes, ...], packed: bytes) -> None:
    assert pack(*words) == packed


@given(st.lists(st.binary(max_size=30)), st.integers(1020, 1030))
def test_every_word_is_packed_with_its_length(words: list[bytes], long: int) -> None:
    words = [*words, b"x" * long]
    assert pack_words(words) == b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
