"""The edges of the contract of stores: a row for each argument, each second call, and each field of a result.

`edges` says how to read the tables. Values are here in one place, and the clauses ask at all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from offload.contracts.capabilities import KEY_SIZE_BYTES_MAX, Capabilities
from offload.contracts.object_metadata import METADATA_PAIRS_MAX, metadata_size
from offload.contracts.store import Span, Suffix
from offload.ground.errors import Misuse
from offload_conformance.edges import NEGATIVE, NUMBERS, POSITIVE, ArgumentKind, Error, varied

# Names at their edges.

NO_KEYS: Final = (
    *("", "/", "/abs", "a/", "a//b", ".", "..", "../x", "a/../b", "a/./b", ".hidden", "a/.hidden", "nul\0"),
    *(
        "\ud800",
        "a/\udcff",
        "k" * 256,
        "a/" + "é" * 128,
        "k" * (KEY_SIZE_BYTES_MAX + 1),
        "é" * (KEY_SIZE_BYTES_MAX // 2 + 1),
    ),
)
"""No keys: empty or hidden parts, a NUL, half of a surrogate pair, one byte too many."""

SPECIAL_KEYS: Final = (
    # URLs and their queries, patterns, shells, templates.
    *(
        "a b",
        "a%2Fb",
        "a%2fb",
        "100%",
        "a%0db",
        "%",
        "%%",
        "%00",
        "~",
        "a\\b",
        "a+b",
        "+",
        "é/日本",
        "*",
        "a*b",
    ),
    *("?y", "a?b=c&d", "#", "a#b", "[a]", "a_b", "a=b", "a@b", "a:b;c,d", "{0}", "$a", "a|b^c", "`a`", "!a"),
    # Lines, blanks, ends of names.
    *("\r", "a\rb", "a\r\nb", "a\tb", "a\nb", "a ", " a", "a/b ", "a /b", "a.", "a...", "a./b", "a/b."),
    *("a\u2028b", "a\x85b", "a\x0cb", "a\x1fb", "a\x7fb", "\ufeffa", "a\u200b"),
    # SQL, XML, JSON, numbers, columns, and words that stand for nothing.
    *(
        "'a'",
        "''",
        '"a"',
        "a';--",
        "<a>&amp;",
        "]]>",
        "null",
        "NULL",
        "None",
        "nan",
        "true",
        "0",
        "-1",
        "1e3",
    ),
    *("key", "keys", "name", "id", "rowid", "data", "size", "index.html", "con", "aux.txt"),
    # Longest names of files, in one byte or more a letter. Encrypted file systems have 143 bytes.
    *("x" * 143, "x" * 144, "x" * 200, "x" * 254, "x" * 255, "x/" + "y" * 255, "é" * 127, "日" * 85),
    # Files that programs keep beside their own.
    *("a.tmp", "a.part", "a.lock", "a~", "_a", "tmp/a", "a.gz", "lost+found", "Thumbs.db"),
    *("_SUCCESS", "_temporary/0/a", "a_$folder$", "a.crc", "a.meta", "a.md5", "part.1", "a.index"),
    # Many folders above a key, and a letter that has two units in UTF-16.
    *("/".join("d" * 64), "\U0001f4be"),
)
"""Keys that a URL, a pattern, a query, XML, a shell, a database or a file system might read as another."""

NO_BEGINNINGS: Final = (
    *("/", "/x", "/x/key", "//", "../", "./x", "x/../", ".", "x/.", "x//", "x/key/"),
    *("X", " x", "a\0"),
)
"""Prefixes of which `x/key` is no continuation, although path rules or word rules might find it."""

LAST_CHARACTERS: Final = ("x\ud7ff", "\uffff", "x\uffff", "\U0010ffff", "x/\U0010ffff", "\x7f")
"""Texts whose last character is the last of its kind: the next one is longer, half a pair, or none."""

METADATA_NAMES: Final = (
    *(
        "Role",
        "managedLedgerName",
        "x9",
        "key",
        "name",
        "value",
        "size",
        "id",
        "order",
        "etag",
        "contentType",
    ),
    *("date", "expires", "null", "metadata", "a" * 64),
)
"""Names of metadata: in mixed case, with digits, of columns and of headers."""

METADATA_VALUES: Final = (
    *(
        "a+b",
        "+",
        "a, b; c=\"d\" 'e' %41 + \\ <&> ~ {} =?",
        "%2B",
        "100%",
        "=?utf-8?q?a?=",
        "a,b",
        "a;b",
        '"a"',
    ),
    *("'", "\\u0041", "<a>", "null", "0", "-1", "01", "1e3", "true", "a b", "v" * 255, "v" * 256),
)
"""Values of metadata that a header, a form, a query or a column might change."""

LENGTHS: Final = (
    *(1, 2, 3, 15, 16, 17, 255, 256, 257, 511, 512, 513, 1_023, 1_024, 1_025, 4_095, 4_096, 4_097),
    *(2**16 - 1, 2**16, 2**16 + 1, 2**20 - 1, 2**20 + 333),
)
"""Sizes of objects around those of words, blocks, pages and buffers, and one that no unit divides."""

ENDINGS: Final = (
    *("", ".bin", ".txt", ".TXT", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".html", ".css", ".js", ".md"),
    *(".log", ".yaml", ".sql", ".py", ".sh", ".gz", ".bz2", ".zst", ".zip", ".tar", ".pdf", ".png", ".jpg"),
    *(".parquet", ".avro", ".manifest", ".index"),
)
"""Ends of names from which a server, a proxy or an SDK may guess a type, and treat the bytes by it."""

TEXT: Final = (
    "\ufeffone\r\ntwo\rthree\n\u00e9\te\u0301 $Id$ %41 &amp; ${x} {{y}} \x1a \x00 \n\n \t\r\n ".encode()
)
"""Text with every kind of line end, blanks at its end, a byte order mark, and letters in two forms."""

NO_TEXT: Final = b"\xff\xfe\r\n\x80\xc3\x28\xed\xa0\x80" + bytes(range(256)) + b"\r\n \n\x00\x00"
"""Bytes that are valid in no coding of text, with line ends in them and zeros at their end."""

NO_METADATA_NAMES: Final = ("", "a-b", "a_b", "1a", "a b", "a:b", "a\r\nb", "é", "a.b", "a\0", "a\n")
NO_METADATA_VALUES: Final = (
    *("", "a\r\nx-other: b", "value\n", "a\tb", "a\0b", "é", " a", "a ", "a  b", " ", "a\x7f"),
)
"""Metadata that not every store keeps as it is, so each of them refuses it."""

# The tables.

KINDS: Final[Mapping[str, ArgumentKind]] = {
    "key: str": ArgumentKind(
        asked_by=("store/keys_are_checked", "store/keys_are_taken_as_they_are", "store/keys_may_be_long"),
        taken=SPECIAL_KEYS,
        refused={Misuse: NO_KEYS},
    ),
    "keys: Sequence[str]": ArgumentKind(
        asked_by=(
            "store/keys_are_checked",
            "store/deletion_is_idempotent",
            "store/deletion_takes_any_number_of_keys",
        ),
        taken=(0, 1, 100, 101, 1_000, 1_001),
        refused={Misuse: NO_KEYS},
    ),
    "prefix: str": ArgumentKind(
        asked_by=(
            "store/listing_takes_any_prefix",
            "store/listing_reads_prefixes_as_they_are",
            "store/listing_finds_nothing_under_what_begins_no_key",
        ),
        taken=("", *SPECIAL_KEYS, *NO_BEGINNINGS, *LAST_CHARACTERS),
    ),
    "after: str": ArgumentKind(
        asked_by=("store/listing_begins_after",), taken=("", *SPECIAL_KEYS, *LAST_CHARACTERS)
    ),
    "span: Span | Suffix | None": ArgumentKind(asked_by=("store/ranges_are_exact",), taken=(None,)),
    "Span.start: int": ArgumentKind(
        asked_by=("store/ranges_are_exact", "store/ranges_are_never_negative"),
        taken=NUMBERS,
        refused={Misuse: NEGATIVE},
    ),
    "Span.length: int": ArgumentKind(
        asked_by=("store/ranges_are_exact", "store/ranges_are_never_negative"),
        taken=NUMBERS,
        refused={Misuse: NEGATIVE},
    ),
    "Span.follows: int": ArgumentKind(
        asked_by=("store/ranges_are_exact", "store/hints_change_no_byte"), taken=NUMBERS
    ),
    "Suffix.length: int": ArgumentKind(
        asked_by=("store/ranges_are_exact", "store/ranges_are_never_negative"),
        taken=NUMBERS,
        refused={Misuse: NEGATIVE},
    ),
    "body: Body": ArgumentKind(
        asked_by=(
            "store/contents_are_kept_as_they_are",
            "store/puts_are_whole",
            "store/a_failing_body_leaves_nothing_visible",
        ),
        taken=(TEXT, NO_TEXT, *LENGTHS),
    ),
    "Body.size_bytes: int": ArgumentKind(
        asked_by=("store/a_body_of_another_size_is_refused", "store/puts_are_whole"),
        refused={Misuse: (*NEGATIVE, *NUMBERS)},  # of a body that has another number of bytes
    ),
    "Body.windows: Callable[[], AsyncIterator[Buffer]]": ArgumentKind(
        asked_by=("store/puts_are_whole", "store/a_put_may_be_repeated")
    ),
    "Body.is_bound: bool": ArgumentKind(
        asked_by=("store/bodies_of_unknown_size_are_whole", "store/a_body_beyond_its_bound_is_refused")
    ),
    "Body.crc32c: Callable[[], int | None]": ArgumentKind(asked_by=("store/stored_checksums_are_true",)),
    "Body.metadata: Mapping[str, str]": ArgumentKind(
        asked_by=(
            "store/contents_are_kept_as_they_are",
            "store/metadata_that_some_store_cannot_keep_is_refused",
        ),
        taken=(*METADATA_NAMES, *METADATA_VALUES),
        refused={Misuse: (*NO_METADATA_NAMES, *NO_METADATA_VALUES)},
    ),
    "metadata: Mapping[str, str]": ArgumentKind(
        asked_by=(
            "store/contents_are_kept_as_they_are",
            "store/metadata_that_some_store_cannot_keep_is_refused",
        ),
        taken=(*METADATA_NAMES, *METADATA_VALUES),
        refused={Misuse: (*NO_METADATA_NAMES, *NO_METADATA_VALUES)},
    ),
    "data: bytes": ArgumentKind(
        asked_by=(
            "store/contents_are_kept_as_they_are",
            "store/creates_may_be_as_large_as_declared",
            "store/uploads_are_as_declared",
        ),
        taken=(TEXT, NO_TEXT, *LENGTHS),
    ),
    "number: int": ArgumentKind(
        asked_by=("store/parts_are_numbered_from_one",),
        refused={Misuse: (0, *NEGATIVE, *POSITIVE, 2**32 + 2)},  # above 1, because part 1 is put as well
    ),
    "upload: Unfinished": ArgumentKind(asked_by=("store/unfinished_uploads_can_be_forgotten",)),
    "Unfinished.key: str": ArgumentKind(because="the store itself makes it"),
    "Unfinished.upload_id: str": ArgumentKind(because="the store itself makes it"),
    "Unfinished.started_ms: int": ArgumentKind(because="the store itself makes it"),
}
"""Each argument of the contract, as its name and type, and each field of a dataclass that is an argument."""

AGAIN: Final[Mapping[str, tuple[str, ...]]] = {
    "ObjectStore.put": ("store/a_put_may_be_repeated", "store/puts_are_whole_while_replaced"),
    "ObjectStore.create": ("store/create_never_replaces", "store/create_refuses_its_own_bytes"),
    "ObjectStore.delete": ("store/deletion_is_idempotent",),
    "ObjectStore.start_upload": ("store/an_upload_may_be_begun_again",),
    "ObjectStore.abort_upload": ("store/unfinished_uploads_can_be_forgotten",),
    "ObjectStore.aclose": ("store/closing_is_idempotent",),
    "Upload.put_part": ("store/uploads_take_a_part_again",),
    "Upload.complete": ("store/a_completed_upload_is_over",),
    "Upload.abort": ("store/an_aborted_upload_leaves_nothing", "store/a_completed_upload_is_over"),
}
"""Each method that changes something, and the clauses that call it a second time."""

FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "Listed.key": ("store/listing_is_ordered",),
    "Listed.size_bytes": ("store/contents_are_kept_as_they_are", "store/listing_is_strong"),
    "Unfinished.key": ("store/unfinished_uploads_are_all_told",),
    "Unfinished.upload_id": ("store/unfinished_uploads_can_be_forgotten",),
    "Unfinished.started_ms": ("store/unfinished_uploads_tell_when_they_began",),
    "Capabilities.atomic_create": ("store/capabilities_are_as_meant", "store/create_is_atomic"),
    "Capabilities.create_is_probed": ("store/capabilities_do_not_change",),
    "Capabilities.strong_listing": ("store/capabilities_are_as_meant", "store/listing_is_strong"),
    "Capabilities.multipart": ("store/capabilities_are_as_meant", "store/uploads_are_as_declared"),
    "Capabilities.part_size_bytes_min": ("store/uploads_are_whole",),
    "Capabilities.part_size_bytes_max": ("store/uploads_are_as_declared",),
    "Capabilities.parts_max": ("store/parts_are_numbered_from_one", "store/uploads_may_have_many_parts"),
    "Capabilities.put_size_bytes_max": ("store/puts_are_whole", "store/a_body_of_another_size_is_refused"),
    "Capabilities.unsized_put": ("store/bodies_of_unknown_size_are_whole",),
    "Capabilities.create_size_bytes_max": ("store/creates_may_be_as_large_as_declared",),
    "Capabilities.delete_batch_max": ("store/deletion_takes_any_number_of_keys",),
    "Capabilities.server_checksum": ("store/capabilities_are_as_meant",),
    "Capabilities.durable": ("store/capabilities_are_as_meant",),
    "Capabilities.one_process": ("store/create_is_atomic_between_processes",),
    "Capabilities.key_size_bytes_max": ("store/keys_may_be_long",),
    "Capabilities.keys_refused": ("store/keys_are_refused_as_declared", "store/keys_may_be_long"),
    "Capabilities.metadata_size_bytes_max": ("store/metadata_may_be_as_large_as_declared",),
}
"""Each field of a result or a declaration, and the clauses that compare it with what they expect."""

READS: Final = frozenset(
    {"get", "stored_crc32c", "metadata_of", "retained", "list", "level", "unfinished_uploads"}
)
"""The methods of a store that change nothing. A second call is one more call, as in many clauses."""


# Questions.


def described(capabilities: Capabilities) -> Iterator[dict[str, str]]:
    """Yield metadata that is kept as it is, with each name and each value of the table. It has lower names.

    Each yield fits into one object. There is none if the store declares no metadata.
    """
    values = {f"n{number}": value for number, value in enumerate(METADATA_VALUES)}
    fits: dict[str, str] = {}
    for name, value in [*values.items(), *((name.lower(), "kept") for name in METADATA_NAMES)]:
        more = {**fits, name: value}
        if len(more) > METADATA_PAIRS_MAX or metadata_size(more) > capabilities.metadata_size_bytes_max:
            if fits:
                yield fits
            more = {name: value}
        fits = more if metadata_size(more) <= capabilities.metadata_size_bytes_max else {}
    if fits:
        yield fits


def spans() -> Iterator[tuple[Span | Suffix | None, Error | None]]:
    """Yield the spans that a read of ten bytes is asked for, with the error of each, or None."""
    yield None, None
    for plain in (Span(0, 10), Span(3, 4), Span(9, 5), Span(10, 1), Suffix(3)):
        yield plain, None
    yield from varied(Span(3, 4), KINDS)
    yield from varied(Suffix(3), KINDS)
    for start in (9, 10, 11):
        yield Span(start, 1), None
        yield Span(start, 0), None
        yield Suffix(start), None
