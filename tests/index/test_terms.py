"""Tests of terms: what a SPEC means, and that the fast way finds what `json` finds in any bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar
from uuid import UUID

import pytest
from amqp_messages import PROPERTIES, compound, encoded
from hypothesis import given
from hypothesis import strategies as st
from offload_pulsar.decoder import PulsarDecoder
from offload_rabbitmq.decoder import AmqpDecoder

from offload import Decoded
from offload.contracts.decoder import Decoder
from offload.ground.errors import Misuse
from offload.index import terms as module
from offload.index.terms import Spec, hashes
from offload.model.record_columns import ByteColumn, RecordBytes


class JsonDecoder(Decoder):
    """Bodies are the records. A record that is JSON is the section `all`, as Python writes it."""

    def bodies(self, records: Sequence[bytes]) -> list[bytes]:
        return [*records]

    def decode(self, records: Sequence[bytes]) -> list[Decoded]:
        return [Decoded(record, {"all": parsed(record)}) for record in records]

    def keys(self, records: Sequence[bytes]) -> list[bytes | None]:
        return [record or None for record in records]


class SeveralDecoder(JsonDecoder):
    """A record is a JSON list of messages, each a value and its key."""

    holds_several: ClassVar[bool] = True

    def messages(self, records: Sequence[bytes]) -> Any:
        for number, record in enumerate(records):
            for value, key in json.loads(record or b"[[null, null]]"):
                yield number, Decoded(value, {"key": key, "both": [value, key]})


def parsed(record: bytes) -> Any:
    try:
        return json.loads(record)
    except (ValueError, RecursionError):
        return None


def found(spec: str, records: Sequence[bytes], decoder: Decoder | None = None) -> list[tuple[int, bytes]]:
    terms = Spec.parse(spec).terms(decoder or JsonDecoder(), RecordBytes.of(records))
    return sorted(zip(terms.rows.tolist(), terms.values.to_list(), strict=True))


def modelled(documents: Sequence[bytes], field: str) -> list[tuple[int, bytes]]:
    """Return the terms of a field, by `json` alone."""
    terms = []
    for row, document in enumerate(documents):
        try:
            text = document.decode()
            value = json.loads(text, parse_int=Number, parse_float=Number, parse_constant=Number)
        except (ValueError, RecursionError):
            continue
        value = value.get(field) if isinstance(value, dict) else None
        for each in value if isinstance(value, list) else [value]:
            match each:
                case Number() | str() if each and not any("\ud800" <= char <= "\udfff" for char in each):
                    terms.append((row, each.encode()))
                case True | False:
                    terms.append((row, str(each).lower().encode()))
    return sorted(terms)


class Number(str):
    """A number as its document has it."""

    __slots__ = ()


# JSON as nobody writes it: each value is drawn as text, so that numbers and escapes have any spelling.
SPACE = st.sampled_from(["", " ", "\n", "\t\r "])
TEXTS = st.lists(
    st.sampled_from(
        ["a", "id", "\\u0069d", "é", "\\u00e9", "\\ud83d\\ude00", "\\ud83d", "\\udc00x", "\\n", '\\"', "\\/",
         "\\\\", "\U0001f600", "\x7f", "\x01", "\\q", "\\u12", "𝄞", ",", "}", "\\u0000"]
    ),
    max_size=4,
).map(lambda parts: '"' + "".join(parts) + '"')  # fmt: skip
NUMBERS = st.sampled_from(
    ["0", "-0", "1.0", "1e3", "1E+03", str(2**70), "-1.50", "9" * 5000, "1e999", "01", "1.", ".5", "NaN",
     "-Infinity", "+1", "1_0"]
)  # fmt: skip
SCALARS = TEXTS | NUMBERS | st.sampled_from(["true", "false", "null", "True", "nul", ""])


def members(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    member = st.tuples(SPACE, st.sampled_from(['"id"', '"i\\u0064"', '"other"', '""']) | TEXTS, SPACE, values)
    return st.lists(member, max_size=4).map(
        lambda rows: "{" + ",".join(f"{a}{name}{b}:{a}{value}{b}" for a, name, b, value in rows) + "}"
    )


VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.tuples(SPACE, st.lists(inner, max_size=4)).map(lambda row: "[" + f",{row[0]}".join(row[1]) + "]")
        | members(inner)
    ),
    max_leaves=8,
)
DOCUMENTS = (
    members(VALUES).map(str.encode)
    | st.tuples(SPACE, members(VALUES), SPACE).map("".join).map(str.encode)
    | VALUES.map(str.encode)
    | st.tuples(members(VALUES), st.sampled_from(["{}", ",", "\ufeff", "x"])).map("".join).map(str.encode)
    | st.tuples(members(VALUES), st.integers(0, 80), st.binary(min_size=1, max_size=2)).map(
        lambda row: row[0].encode()[: row[1]] + row[2] + row[0].encode()[row[1] :]
    )
    | st.binary(max_size=8)
)  # fmt: skip


@given(st.lists(DOCUMENTS, max_size=6))
def test_a_field_of_any_bodies_has_the_terms_that_json_finds(documents: list[bytes]) -> None:
    assert found("json:body.id", documents) == modelled(documents, "id")


@given(st.lists(DOCUMENTS, max_size=6))
def test_a_section_has_the_terms_of_its_field(documents: list[bytes]) -> None:
    """The decoder writes the section with `json`, so a number is as Python prints it."""
    kept = [each for each in documents if not has_surrogates(each)]

    written = [json.dumps(parsed(each)).encode() for each in kept]

    assert found("json:all.id", kept) == modelled(written, "id")


def has_surrogates(document: bytes) -> bool:
    try:
        json.dumps(parsed(document), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


@pytest.mark.parametrize(
    ("value", "terms"),
    [
        ('"m7"', [b"m7"]),
        ('"7"', [b"7"]),
        ("7", [b"7"]),
        ("1.0", [b"1.0"]),
        ("1e3", [b"1e3"]),
        (str(2**70), [str(2**70).encode()]),
        ("true", [b"true"]),
        ('"\\u00e9"', ["é".encode()]),
        ('["a", 2, false, null, "", {"b": 1}, ["c"]]', [b"2", b"a", b"false"]),
        ('""', []),
        ("null", []),
        ("[]", []),
        ('{"id": 1}', []),
        ('"\\ud83d"', []),
        ('["\\ud83d", "a"]', [b"a"]),
        ("[1.0, 1e3, 2, -0]", [b"-0", b"1.0", b"1e3", b"2"]),
    ],
)
def test_a_value_has_these_terms(value: str, terms: list[bytes]) -> None:
    assert found("json:body.id", [f'{{"id": {value}}}'.encode()]) == [(0, term) for term in terms]
    if not any(part in value for part in ("\\ud83d", "1e3", "-0")):  # Python writes those in another way
        assert found("json:all.id", [f'{{"id": {value}}}'.encode()]) == [(0, term) for term in terms]
        assert found("json:all", [value.encode()]) == [(0, term) for term in terms]


def test_half_a_surrogate_pair_elsewhere_hides_no_term() -> None:
    """JavaScript writes such a pair for a text that it cut."""
    assert found("json:body.id", [b'{"cut": "\\ud83d", "id": "m7"}']) == [(0, b"m7")]


def test_a_body_that_is_no_utf8_has_no_terms() -> None:
    assert found("json:body.id", [b'{"x": "\xff", "id": "m7"}', b'{"id": "m8"}']) == [(1, b"m8")]


def test_deep_nesting_hides_only_its_own_record() -> None:
    deep = b'{"id": ' + b"[" * 10**6 + b"]" * 10**6 + b"}"

    assert found("json:body.id", [deep, b'{"id": 1}']) == [(1, b"1")]


def test_a_term_may_have_a_megabyte() -> None:
    term = b"x" * 2**20

    assert found("json:body.id", [b'{"id": "%b"}' % term]) == [(0, term)]


def test_a_record_may_have_a_million_terms() -> None:
    record = json.dumps({"id": [f"k{number}" for number in range(10**6)]}).encode()

    terms = Spec.parse("json:body.id").terms(JsonDecoder(), RecordBytes.of([b"{}", record]))

    assert (terms.rows == 1).all()
    assert {*terms.values.to_list()} == {b"k%d" % number for number in range(10**6)}


def test_several_paths_give_the_terms_of_each() -> None:
    records = [b'{"a": 1, "b.c": "x"}', b'{"b.c": 2}', b""]

    assert found("json:body.a,body.b.c,key", records) == sorted(
        [(0, b"1"), (0, b"x"), (1, b"2"), (0, records[0]), (1, records[1])]
    )


MESSAGE_IDS = (
    st.none() | st.text(max_size=40) | st.integers(2, 2**63 - 1) | st.uuids() | st.binary(max_size=9)
)


@given(st.lists(MESSAGE_IDS, max_size=50))
def test_message_ids_of_amqp_are_terms_as_read_prints_them(ids: list[Any]) -> None:
    records = [PROPERTIES + compound(0xC0, [encoded(each)]) + b"\0\x53\x75\xa0\1x" for each in ids]
    have_terms = [(row, each) for row, each in enumerate(ids) if isinstance(each, (str, int, UUID))]

    terms = found("amqp:properties.message_id", records, AmqpDecoder())

    assert terms == [(row, str(each).encode()) for row, each in have_terms if each != ""]


def test_a_record_with_several_messages_has_the_terms_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    batch: list[list[Any]] = [['{"id": 1}', "k1"], [None, None], [{"id": [2, 3]}, "k2"], ["plain", ""]]
    records = [json.dumps(batch).encode(), json.dumps(batch[2:3]).encode()]
    paths = "json:body.id,key,both"

    terms = found(paths, records, SeveralDecoder())
    monkeypatch.setattr(module, "_BLOCK_SIZE_BYTES", 1)

    ids, keys = [b"1", b"2", b"3"], [b"k1", b"k2"]
    assert terms == sorted(
        [(0, each) for each in [*ids, *keys, *keys, b"plain", batch[0][0].encode()]]
        + [(1, each) for each in [*ids[1:], b"k2", b"k2"]]
    )
    assert found(paths, records, SeveralDecoder()) == terms
    assert len([*module._blocks(SeveralDecoder(), RecordBytes.of(records), ["key"])]) > 1


def test_a_section_that_the_decoder_lacks_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(Misuse, match=r"no 'value'. It has key, all, body.FIELD"):
        found("json:value", [])
    with pytest.raises(Misuse, match=r"no 'tags'. It has key, batch_index, properties, metadata, body.FIELD"):
        found("pulsar:tags", [], PulsarDecoder())


def test_a_spec_has_one_text() -> None:
    spec = Spec.parse("amqp:properties.message_id,key,properties.message_id,body.a.b")

    assert str(spec) == "amqp:body.a.b,key,properties.message_id"
    assert Spec.parse(str(spec)) == spec


@pytest.mark.parametrize(
    "text",
    ["", "amqp", "amqp:", ":key", "amqp:key,", "amqp:,key", "amqp:body", "amqp:body.", "amqp:.a",
     "amqp:key.a", "am qp:key", "amqp:a\nb", "amqp:a\ud800", 'amqp:a.b"c', "amqp:a.\\", "amqp:a." + "x" * 200,
     "amqp:a." + "é" * 100],
)  # fmt: skip
def test_any_other_text_is_no_spec(text: str) -> None:
    with pytest.raises(Misuse, match="is no SPEC"):
        Spec.parse(text)


@given(st.text(max_size=12))
def test_every_field_that_a_spec_accepts_is_found(field: str) -> None:
    try:
        spec = Spec.parse(f"json:body.{field}")
    except Misuse:
        return
    if "," in field:
        return

    assert found(str(spec), [json.dumps({field: "m7"}).encode()]) == [(0, b"m7")]


def test_hashes_are_the_published_ones() -> None:
    """The reference values of xxHash 0.8 for seed 0."""
    values = ByteColumn.of([b"", b"a", b"abc", b"Nobody inspects the spammish repetition"])

    assert hashes(values).tolist() == [
        0xEF46DB3751D8E999, 0xD24EC4F1A98C6E5B, 0x44BC2CF5AD770999, 0xFBCEA83C8A378BF1,
    ]  # fmt: skip
