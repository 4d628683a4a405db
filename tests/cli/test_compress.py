"""`--compress`: what each command stores with it, what the tier remembers, and what stays as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import bodies, keys, offload, sync, verify
from osiris_data import DATA
from osiris_writer import append_chunks, simple_chunks, write_stream

from offload.formats.anchor import TierAnchor

STREAM = "filtered"
"""Real messages, of which zstd stores a tenth."""


def synced(tier: Path, *options: object, source: Path = DATA / STREAM) -> None:
    ran = offload("sync", f"rabbitmq://{source}", tier, *options)
    assert ran.code == 0, ran.stderr


def default_of(tier: Path) -> object:
    """Return the default compression in the anchor, read by other means than the program's."""
    return json.loads((tier / "tier.anchor").read_text().split("\n")[1]).get("compression")


def shown(tier: Path, stream: str = STREAM) -> dict[str, Any]:
    [row] = (row for row in offload("ls", tier, "--json").objects if row["stream"] == stream)
    return row


def codecs(tier: Path, stream: str = STREAM) -> list[str]:
    return [row["codec"] for row in offload("inspect", tier, stream, "--json").document["fragments"]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tier without compression. Tests do not change it."""
    tier = tmp_path_factory.mktemp("plain") / "tier"
    synced(tier)
    return tier


@pytest.mark.parametrize(
    ("text", "recorded", "codec", "ratio_least"),
    [("zstd", "zstd:1", "zstd", 5), ("zstd:9", "zstd:9", "zstd", 5), ("lz4", "lz4", "lz4", 3)],
)
def test_a_sync_that_makes_a_tier_compresses_and_records_the_default(
    tmp_path: Path, plain: Path, text: str, recorded: str, codec: str, ratio_least: float
) -> None:
    tier = tmp_path / "tier"

    synced(tier, "--compress", text)

    row, plain_row = shown(tier), shown(plain)
    assert default_of(tier) == recorded
    assert (row["codecs"], plain_row["codecs"]) == ([codec], ["none"])
    assert {*codecs(tier)} == {codec}
    assert row["bytes"] == plain_row["bytes"]
    assert row["ratio"] == round(row["bytes"] / row["stored_bytes"], 2) > ratio_least
    assert bodies(tier, STREAM) == bodies(plain, STREAM)
    assert verify(tier)[0] == 0


@pytest.mark.parametrize("options", [(), ("--compress", "none")])
def test_a_tier_without_compression_has_the_anchor_of_earlier_releases(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    synced(tmp_path / "tier", *options)

    assert (tmp_path / "tier" / "tier.anchor").read_bytes() == (
        b'ledger-offload tier 1\n{"branching_factor":1024}\ncrc32c 308fcbce\n'
    )


def test_later_syncs_use_the_default_and_one_may_name_another_codec(tmp_path: Path) -> None:
    source, tier = tmp_path / "orders", tmp_path / "tier"
    write_stream(source, simple_chunks(2))
    synced(tier, "--compress", "zstd", source=source)
    for options in ((), ("--compress", "lz4"), ("--compress", "none"), ()):
        end = shown(tier, "orders")["next_offset"]
        append_chunks(source, simple_chunks(2, first_offset=end))
        synced(tier, *options, source=source)

    assert codecs(tier, "orders") == ["zstd", "zstd", "lz4", "none", "zstd"]
    assert shown(tier, "orders")["codecs"] == ["none", "zstd", "lz4"]
    assert default_of(tier) == "zstd:1"


def test_a_sync_does_not_change_the_default_of_an_existing_tier(tmp_path: Path) -> None:
    source, tier = tmp_path / "orders", tmp_path / "tier"
    write_stream(source, simple_chunks(2))
    synced(tier, source=source)
    append_chunks(source, simple_chunks(2, first_offset=shown(tier, "orders")["next_offset"]))

    synced(tier, "--compress", "zstd", source=source)

    assert codecs(tier, "orders") == ["none", "zstd"]
    assert default_of(tier) is None


def test_a_copy_compresses_and_makes_its_target_with_the_default(tmp_path: Path, plain: Path) -> None:
    target = tmp_path / "target"

    table = offload("copy", plain, target, "--compress", "zstd")

    [copied] = offload("copy", plain, tmp_path / "other", "--compress", "lz4", "--json").objects
    assert table.code == 0
    assert default_of(target) == "zstd:1"
    assert {*codecs(target)} == {"zstd"}
    assert copied["bytes"] == shown(plain)["bytes"] > 3 * copied["stored_bytes"]
    assert copied["stored_bytes"] == shown(tmp_path / "other")["stored_bytes"]
    assert bodies(target, STREAM) == bodies(plain, STREAM)
    assert verify(target)[0] == 0


def test_a_copy_without_the_option_stores_a_compressed_tier_by_the_targets_default(tmp_path: Path) -> None:
    synced(tmp_path / "tier", "--compress", "zstd")

    assert offload("copy", tmp_path / "tier", tmp_path / "target").code == 0

    assert {*codecs(tmp_path / "target")} == {"none"}
    assert bodies(tmp_path / "target", STREAM) == bodies(tmp_path / "tier", STREAM)


def small_fragments(folder: Path) -> Path:
    """Make a tier with five small fragments of one ledger, without compression."""
    source, tier = folder / "orders", folder / "tier"
    write_stream(source, simple_chunks(20, records=50))
    chunks = [*simple_chunks(60, records=50)]
    for first in range(20, 60, 10):
        sync(source, tier)
        append_chunks(source, chunks[first : first + 10])
    sync(source, tier)
    return tier


def test_a_compaction_compresses_what_it_merges(tmp_path: Path) -> None:
    tier = small_fragments(tmp_path)
    before = bodies(tier, "orders")

    [done] = offload("compact", tier, "orders", "--compress", "zstd", "--json").objects

    assert codecs(tier, "orders") == ["zstd", "none"], "the newest fragment stays as it is"
    merged, _ = offload("inspect", tier, "orders", "--json").document["fragments"]
    assert (done["bytes"], done["stored_bytes"]) == (merged["bytes"], merged["stored_bytes"])
    assert done["stored_bytes"] < done["bytes"]
    assert bodies(tier, "orders") == before
    assert verify(tier)[0] == 0


def test_a_compaction_rewrites_no_fragment_because_of_its_codec(tmp_path: Path, plain: Path) -> None:
    synced(tmp_path / "tier")
    before = keys(tmp_path / "tier")

    [done] = offload("compact", tmp_path / "tier", "--compress", "zstd", "--json").objects

    assert (done["runs"], done["bytes"]) == (0, 0)
    assert keys(tmp_path / "tier") == before


@pytest.mark.parametrize("command", ["sync", "copy", "compact", "rebuild"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gzip", "'gzip' is no compression: use none, lz4, zstd or"),
        ("zstd:20", "the levels 1 to 19, not 20"),
        ("lz4:1", "lz4 has no levels"),
    ],
)
def test_a_wrong_compression_is_one_line_and_changes_nothing(
    tmp_path: Path, command: str, text: str, message: str
) -> None:
    places = {"sync": (f"rabbitmq://{DATA / STREAM}", tmp_path / "new"), "copy": (tmp_path, tmp_path / "new")}

    ran = offload(command, *places.get(command, (tmp_path / "new",)), "--compress", text)

    assert (ran.code, ran.stdout) == (2, b"")
    assert ran.error.startswith("offload: --compress: ")
    assert message in ran.error
    assert not (tmp_path / "new").exists()


def test_the_command_that_continues_a_stopped_stream_keeps_the_option(tmp_path: Path) -> None:
    source, other, tier = tmp_path / "orders", tmp_path / "other" / "orders", tmp_path / "tier"
    write_stream(source, simple_chunks(4))
    write_stream(other, simple_chunks(4, records=4))
    synced(tier, source=source)

    ran = offload("sync", f"rabbitmq://{other}", tier, "--compress", "zstd:9")

    assert ran.code == 1
    assert " --compress zstd:9 --stream orders --new-part" in ran.error


def test_inspect_shows_both_sizes_the_ratio_and_the_codec(tmp_path: Path) -> None:
    synced(tmp_path / "tier", "--compress", "zstd")

    document = offload("inspect", tmp_path / "tier", STREAM, "--json").document
    lines = offload("inspect", tmp_path / "tier", STREAM).lines

    totals, fragments = document["totals"], document["fragments"]
    assert totals["stored_bytes"] == sum(row["stored_bytes"] for row in fragments)
    assert f"stored as {totals['stored_bytes'] / 1024:.1f} KiB (ratio {totals['ratio']:.2f})" in lines[0]
    for row, line in zip(fragments, lines[-len(fragments) :], strict=True):
        stored = f"{row['bytes'] / 1024:.1f} KiB, stored as {row['stored_bytes'] / 1024:.1f} KiB"
        assert f"{stored} (zstd, ratio {row['ratio']:.2f})" in line


def test_a_group_adds_no_codec_to_its_stream(tmp_path: Path) -> None:
    """The entry of a group has no codec, and a 0 there does not mean that its fragments are plain."""
    source, tier = tmp_path / "orders", tmp_path / "tier"
    write_stream(source, simple_chunks(3), segment_chunks=1)
    tier.mkdir()
    anchor = TierAnchor(branching_factor=2, compression="zstd:3").encode()
    (tier / "tier.anchor").write_bytes(anchor)
    synced(tier, source=source)

    [group] = offload("inspect", tier, "orders", "--json").document["groups"]

    assert group["fragments"] == 2
    assert "codec" not in group
    assert shown(tier, "orders")["codecs"] == ["zstd"]


def test_a_limit_of_size_counts_plain_bytes(tmp_path: Path, plain: Path) -> None:
    synced(tmp_path / "tier", "--compress", "zstd")

    compressed = offload("trim", tmp_path / "tier", STREAM, "--max-bytes", "1MB", "--dry-run", "--json")

    uncompressed = offload("trim", plain, STREAM, "--max-bytes", "1MB", "--dry-run", "--json")
    one, other = compressed.document, uncompressed.document
    assert (one["first_offset"], one["bytes"]) == (other["first_offset"], other["bytes"])
    assert one["first_offset"] > 0
    text = offload("trim", tmp_path / "tier", STREAM, "--max-bytes", "1MB", "--dry-run").text
    assert f"({one['bytes'] / 1024:.1f} KiB before compression), offsets" in text
    assert "before compression" not in offload("trim", plain, STREAM, "--max-bytes", "1MB", "--dry-run").text


def test_a_restored_anchor_takes_the_default_that_the_command_names(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    synced(tier, "--compress", "zstd")
    (tier / "tier.anchor").unlink()

    dry = offload("rebuild", tier, "--compress", "zstd:9", "--dry-run")
    ran = offload("rebuild", tier, "--compress", "zstd:9")

    assert "new fragments have compression zstd:9" in dry.text
    assert "another default" not in dry.text
    assert (ran.code, default_of(tier)) == (0, "zstd:9")
    assert offload("rebuild", tier, STREAM, "--compress", "zstd:9", "--yes").code == 2


def test_a_rebuild_of_the_anchor_asks_for_the_default_that_objects_do_not_show(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    synced(tier, "--compress", "zstd")
    (tier / "tier.anchor").unlink()

    dry, ran = offload("rebuild", tier, "--dry-run"), offload("rebuild", tier)

    assert "if the tier had another default, add --compress" in dry.text
    assert "if the tier had another default, remove tier.anchor, and run this again" in ran.text
    (tier / "tier.anchor").unlink()
    assert offload("rebuild", tier, "--compress", "zstd").code == 0
    assert default_of(tier) == "zstd:1"
