"""Arguments and results as bytes: what goes in comes out, and what could not is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskhive import codec
from taskhive.codec import BadPayload, decode_call, decode_result, encode_call, encode_result
from taskhive.errors import ConfigurationError, NotEncodable, PayloadTooLarge

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.none() | st.booleans() | st.integers() | FLOATS | TEXT
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=4), st.dictionaries(TEXT, JSON, max_size=3))
def test_a_call_comes_out_as_it_went_in(args: list[Any], kwargs: dict[str, Any]) -> None:
    assert decode_call(encode_call(tuple(args), kwargs)) == (tuple(args), kwargs)


@given(JSON | st.binary())
def test_a_result_comes_out_as_it_went_in(value: Any) -> None:
    assert decode_result(encode_result(value)) == value


@given(st.binary())
def test_bytes_travel_untouched(data: bytes) -> None:
    assert decode_call(encode_call((data,), {}, codec="raw")) == ((data,), {})


@given(st.binary(max_size=60))
def test_whatever_the_bytes_are_reading_them_is_a_value_or_one_error(data: bytes) -> None:
    for head in (b"", b"j", b"k"):
        for decode in (decode_call, decode_result):
            try:
                decode(head + data)
            except BadPayload:
                pass


def test_tuples_travel_as_lists() -> None:
    assert decode_call(encode_call(((1, 2),), {})) == (([1, 2],), {})


HOSTILE = {
    "nothing": b"",
    "a head alone": b"j",
    "an unknown codec": b"z[]",
    "an object for arguments": b'j{"a":1}',
    "null": b"jnull",
    "a call of one": b"k[[]]",
    "a call of three": b"k[[],{},1]",
    "a call turned round": b"k[{},[]]",
    "no UTF-8": b'j["\xff"]',
    "a byte order mark": b"j\xef\xbb\xbf[]",
    "something behind it": b"j[] []",
    "a trailing comma": b"j[1,]",
    "NaN": b"j[NaN]",
    "infinity": b"j[-Infinity]",
    "a float beyond floats": b"j[1e999]",
    "a key twice": b'j[{"a":1,"a":2}]',
    "a keyword twice": b'k[[],{"a":1,"a":2}]',
    "5,000 digits": b"j[" + b"9" * 5000 + b"]",
    "200 deep": b"j" + b"[" * 200 + b"]" * 200,
    "200 objects deep": b"j[" + b'{"a":' * 200 + b"1" + b"}" * 200 + b"]",
    "100,000 deep": b"j" + b"[" * 100_000 + b"]" * 100_000,
    "half a pair": b'j["\\ud800"]',
    "half a pair in capitals": b'j["\\uD800"]',
    "half a pair as a key": b'j[{"\\udfff":1}]',
    "a control character": b'j["\n"]',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_bytes_that_no_call_was_encoded_to_are_no_call(name: str) -> None:
    with pytest.raises(BadPayload):
        decode_call(HOSTILE[name])


def test_a_whole_pair_is_one_character_however_it_is_written() -> None:
    assert decode_call(b'j["\\ud83d\\ude00"]') == (("😀",), {})


@pytest.mark.parametrize(
    ("args", "path"),
    [
        (({"when": [1, float("nan")]},), "args[0]['when'][1]"),
        ((1, {2: 3}), "args[1]"),
        ((b"x",), "args[0]"),
        (([[["\ud800"]]],), "args[0][0][0][0]"),
        ((10**1000,), "args[0]"),
    ],
)
def test_the_place_of_what_cannot_travel_is_told(args: tuple[Any, ...], path: str) -> None:
    with pytest.raises(NotEncodable) as wrong:
        encode_call(args, {})
    assert wrong.value.path == path


@pytest.mark.parametrize("args", [(), ("text",), (b"a", b"b"), (None,)])
def test_raw_is_for_one_argument_of_bytes(args: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigurationError):
        encode_call(args, {}, codec="raw")


def test_the_limit_counts_encoded_bytes() -> None:
    assert len(encode_call(("é",), {}, limit=7)) == 7
    with pytest.raises(PayloadTooLarge) as wrong:
        encode_call(("éé",), {}, limit=7)
    assert (wrong.value.size, wrong.value.limit) == (9, 7)
    with pytest.raises(PayloadTooLarge):
        encode_result("x" * codec.MAX_RESULT)
