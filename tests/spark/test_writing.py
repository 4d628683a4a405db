"""Parallel writes without Spark: the steps of tasks and driver in any order, once, twice, or not at all."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from offload_spark.framing import Framer
from offload_spark.options import WriteOptions
from offload_spark.sink import Message, StreamingWriter, Writer
from offload_spark.source import OffloadDataSource
from offload_spark.spool import Spool
from offload_spark.writing import (
    Begun,
    Ticket,
    WrittenTask,
    begin,
    commit,
    find_write,
    give_up,
    upload,
    withdraw,
    write_part,
)
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType
from spark.in_process import Tier, tier

from offload import Blocking, Manifest, ObjectStoreOffloader
from offload.commit.guest import Delete
from offload.ground.env import Env
from offload.ground.errors import Conflict, Misuse, OutcomeUnknown, StreamDeleted
from offload.model.manifest import AttemptKind
from offload.upkeep.retention import Retention, trim
from offload.write.writer import StreamWriter

NUMBERS = count(37)
"""Numbers of tries. Spark gives each try its own."""

STREAM = "orders"
AT_MS = 1_700_000_000_000
OPTIONS = WriteOptions.of({"path": "memory", "stream": STREAM})


@pytest.fixture
def opened() -> Iterator[Tier]:
    with tier() as made:
        made.blocking.run(begin(made.blocking.offloader, OPTIONS))
        yield made


def manifest(tier: Tier) -> Manifest:
    return tier.blocking.load_manifest(STREAM)


def ticket(tier: Tier, name: str = "", *, job: str = "") -> Ticket:
    return Ticket.of(Begun(incarnation=manifest(tier).incarnation), run=uuid4(), job=job or name, write=name)


def task(tier: Tier, ticket: Ticket, first: int, stop: int) -> WrittenTask:
    """Upload the rows of one task. The value of each row is its offset."""
    spool, framer = Spool(), Framer(stream=STREAM, timestamp_ms=AT_MS)
    rows = {"offset": [*range(first, stop)], "value": [b"%d" % at for at in range(first, stop)]}
    spool.add(framer.chunks(pa.RecordBatch.from_pydict(rows)))
    try:
        uploading = upload(tier.blocking.offloader, STREAM, ticket, spool, number=next(NUMBERS))
        return tier.blocking.run(uploading)
    finally:
        spool.close()


def finish(tier: Tier, *parts: WrittenTask) -> None:
    tier.blocking.run(commit(tier.blocking.offloader, STREAM, parts))


def values(tier: Tier) -> list[bytes]:
    return [value for *_, value in tier.rows(tier.plan(stream=STREAM))]


def expected(stop: int) -> list[bytes]:
    return [b"%d" % at for at in range(stop)]


def test_rows_of_tasks_are_read_back_in_the_order_of_offsets(opened: Tier) -> None:
    own = ticket(opened)
    late, early = task(opened, own, 60, 100), task(opened, own, 0, 60)
    assert manifest(opened).next_offset == 0  # nothing before the commit
    finish(opened, late, early)
    assert values(opened) == expected(100)
    assert not manifest(opened).running


def test_a_task_that_is_tried_again_counts_once(opened: Tier) -> None:
    own = ticket(opened)
    task(opened, own, 0, 50)  # its message never came
    finish(opened, task(opened, own, 0, 50), task(opened, own, 50, 80))
    assert values(opened) == expected(80)
    assert not manifest(opened).running  # so the sweep takes what the first try uploaded


def test_a_write_that_is_repeated_is_applied_once(opened: Tier) -> None:
    finish(
        opened,
        task(opened, ticket(opened, "batch 7"), 0, 50),
        task(opened, ticket(opened, "batch 7"), 50, 80),
    )
    before = manifest(opened)
    again = [task(opened, ticket(opened, "batch 7"), *span) for span in ((0, 20), (20, 79), (79, 80))]
    assert [part.receipt for part in again] == [None] * 3
    finish(opened, *again)
    assert manifest(opened).commit_id == before.commit_id


def test_another_write_to_the_same_offsets_is_refused(opened: Tier) -> None:
    finish(opened, task(opened, ticket(opened, "a"), 0, 50))
    for name in ("b", ""):
        with pytest.raises(Conflict, match="do not continue it: it ends at 50"):
            task(opened, ticket(opened, name), 0, 50)
        with pytest.raises(Conflict):
            task(opened, ticket(opened, name), 49, 60)
    with pytest.raises(Conflict):  # some rows are its own, the others are new
        task(opened, ticket(opened, "a"), 40, 60)


def test_one_of_two_concurrent_writes_commits_and_the_other_gets_a_conflict(opened: Tier) -> None:
    one, other = task(opened, ticket(opened, "a"), 0, 50), task(opened, ticket(opened, "b"), 0, 70)
    finish(opened, one)
    with pytest.raises(Conflict):
        finish(opened, other)
    assert values(opened) == expected(50)
    opened.blocking.run(give_up(opened.blocking.offloader, STREAM, other.ticket.job))
    assert not manifest(opened).running


def test_a_hole_between_tasks_is_refused_and_names_nothing(opened: Tier) -> None:
    own = ticket(opened)
    parts = [task(opened, own, 0, 10), task(opened, own, 11, 20)]
    with pytest.raises(Misuse, match="offset 11 does not continue 10"):
        finish(opened, *parts)
    assert manifest(opened).next_offset == 0


def test_a_write_that_begins_beyond_the_end_is_a_misuse(opened: Tier) -> None:
    with pytest.raises(Misuse, match="offset 5 does not continue 0"):
        finish(opened, task(opened, ticket(opened), 5, 20))


def test_giving_up_touches_no_other_job(opened: Tier) -> None:
    mine, other = ticket(opened, "a"), ticket(opened, "b")
    task(opened, mine, 0, 10)
    kept = task(opened, other, 0, 10)
    opened.blocking.run(give_up(opened.blocking.offloader, STREAM, mine.job))
    assert {(each.writer, each.kind) for each in manifest(opened).running} == {(other.job, AttemptKind.JOB)}
    finish(opened, kept)
    assert values(opened) == expected(10)


def test_a_write_that_was_given_up_never_commits(opened: Tier) -> None:
    part = task(opened, ticket(opened, "a"), 0, 10)
    opened.blocking.run(give_up(opened.blocking.offloader, STREAM, part.ticket.job))
    with pytest.raises(Conflict):
        finish(opened, part)
    assert manifest(opened).next_offset == 0


def test_the_next_batch_of_a_query_drops_what_a_killed_driver_left(opened: Tier) -> None:
    killed = ticket(opened, "query q batch 0", job="query q")
    task(opened, killed, 0, 10)
    finish(opened, task(opened, ticket(opened, "query q batch 0", job="query q"), 0, 10))
    assert not manifest(opened).running
    task(opened, killed, 10, 20)
    finish(opened, task(opened, ticket(opened, "query q batch 1", job="query q"), 10, 15))
    assert not manifest(opened).running
    assert values(opened) == expected(15)


def test_a_batch_without_rows_changes_nothing(opened: Tier) -> None:
    before = manifest(opened)
    finish(opened, WrittenTask(ticket=ticket(opened)), WrittenTask(ticket=ticket(opened)))
    finish(opened)
    assert manifest(opened).commit_id == before.commit_id


def test_a_repeated_write_whose_rows_were_trimmed_has_an_unknown_outcome(opened: Tier) -> None:
    finish(opened, task(opened, ticket(opened, "a"), 0, 10))
    finish(opened, task(opened, ticket(opened, "b"), 10, 20))
    opened.blocking.run(trim(opened.blocking.offloader, STREAM, Retention(before_offset=10)))
    with pytest.raises(OutcomeUnknown):
        task(opened, ticket(opened, "a"), 0, 10)


def test_a_deleted_stream_is_not_written_to(opened: Tier) -> None:
    part = task(opened, ticket(opened), 0, 10)
    now = manifest(opened)
    delete = Delete(incarnation=now.incarnation)
    commit_it = opened.blocking.offloader.commit_manifest(STREAM, delete, base=now, committer=uuid4())
    opened.blocking.run(commit_it)
    with pytest.raises(StreamDeleted):
        finish(opened, part)
    opened.blocking.run(begin(opened.blocking.offloader, OPTIONS))  # a new stream of the name
    with pytest.raises(StreamDeleted, match="begun again since"):
        finish(opened, part)
    assert manifest(opened).next_offset == 0


def test_a_stream_begins_at_its_first_offset_option() -> None:
    with tier() as made:
        options = WriteOptions.of({"path": "memory", "stream": STREAM, "firstOffset": "1000"})
        made.blocking.run(begin(made.blocking.offloader, options))
        assert manifest(made).next_offset == 1000
        finish(made, task(made, ticket(made), 1000, 1010))
        made.blocking.run(begin(made.blocking.offloader, options))
        again = manifest(made)
        assert (again.first_offset, again.next_offset) == (1000, 1010)


def test_a_failed_write_leaves_no_stream_that_it_began() -> None:
    with tier() as made:
        begun = made.blocking.run(begin(made.blocking.offloader, OPTIONS))
        own = ticket(made)
        task(made, own, 0, 10)
        made.blocking.run(give_up(made.blocking.offloader, STREAM, own.job))
        task(made, own, 10, 20)  # by a task that Spark has not ended yet

        made.blocking.run(withdraw(made.blocking.offloader, STREAM, begun, job=own.job))

        with pytest.raises(StreamDeleted):
            manifest(made)
        made.blocking.run(withdraw(made.blocking.offloader, STREAM, begun, job=own.job))  # again
        made.blocking.run(begin(made.blocking.offloader, OPTIONS))
        finish(made, task(made, ticket(made), 0, 10))
        assert values(made) == expected(10)


@pytest.mark.parametrize(("begins", "row"), [("0", 5), ("10", 5)])
def test_a_new_stream_that_begins_elsewhere_is_an_error_that_names_the_option(begins: str, row: int) -> None:
    with tier() as made:
        options = WriteOptions.of({"path": "memory", "stream": STREAM, "firstOffset": begins})
        own = Ticket.of(made.blocking.run(begin(made.blocking.offloader, options)), run=uuid4())

        with pytest.raises(Misuse, match=rf'begins at offset {begins}.*option\("firstOffset", {row}\)'):
            finish(made, task(made, own, row, 15))


def test_a_batch_that_cannot_be_committed_leaves_no_stream_that_it_began(tmp_path: Path) -> None:
    """Spark commits and aborts a batch by writers that it makes anew, so the tasks' messages bring it all."""
    source = OffloadDataSource({"path": str(tmp_path), "stream": STREAM})
    schema = StructType().add("offset", "long").add("value", "binary")
    sent = source.streamWriter(schema, overwrite=False)
    with Blocking(str(tmp_path)) as tier:
        first = tier.load_manifest(STREAM)
        ticket = Ticket.of(Begun(incarnation=first.incarnation, writer=first.writer), run=uuid4(), job="q")
    rows = pa.RecordBatch.from_pydict({"offset": [7, 8], "value": [b"7", b"8"]})
    part = write_part(sent._options, ticket, [rows], number=1, timestamp_ms=AT_MS)
    messages: list[WriterCommitMessage | None] = [Message(part=part), None]
    committing = source.streamWriter(schema, overwrite=False)

    with pytest.raises(Misuse, match="firstOffset"):
        committing.commit(messages, 0)
    committing.abort(messages, 0)

    with Blocking(str(tmp_path)) as tier, pytest.raises(StreamDeleted):
        tier.load_manifest(STREAM)


@pytest.mark.parametrize("kind", [Writer, StreamingWriter])
def test_a_writer_takes_its_time_and_its_uuids_from_the_environment(
    tmp_path: Path, kind: type[Writer | StreamingWriter]
) -> None:
    """All tries of its tasks have them, so nothing is drawn again after Spark pickled the writer."""
    drawn = (UUID(int=number) for number in count(1))
    env = Env(now_ms=lambda: AT_MS, uuid=lambda: next(drawn))
    options = WriteOptions.of({"path": str(tmp_path), "stream": STREAM})
    schema = StructType().add("offset", "long").add("value", "binary")

    writer = pickle.loads(pickle.dumps(kind(options, schema, overwrite=False, env=env)))

    assert (writer._now_ms, writer._run_id) == (AT_MS, UUID(int=1))
    with Blocking(str(tmp_path)) as tier:
        assert tier.load_manifest(STREAM).writer == writer._begun.writer == UUID(int=2)
    if kind is Writer:
        assert writer._ticket.job.int > 2


def test_a_withdrawal_is_committed_under_a_uuid_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    committers = list[UUID]()
    commit_manifest = ObjectStoreOffloader.commit_manifest

    def watched(self: ObjectStoreOffloader, *args: Any, base: Manifest, committer: UUID) -> Any:
        committers.append(committer)
        return commit_manifest(self, *args, base=base, committer=committer)

    with tier() as made:
        begun, own = made.blocking.run(begin(made.blocking.offloader, OPTIONS)), ticket(made)
        monkeypatch.setattr(ObjectStoreOffloader, "commit_manifest", watched)
        env = Env(uuid=lambda: UUID(int=77))

        made.blocking.run(withdraw(made.blocking.offloader, STREAM, begun, job=own.job, env=env))

    assert committers == [UUID(int=77)]


def test_a_task_that_outlives_its_write_leaves_a_recreated_stream_alone() -> None:
    with tier() as made:
        begun, own = made.blocking.run(begin(made.blocking.offloader, OPTIONS)), ticket(made)
        made.blocking.run(withdraw(made.blocking.offloader, STREAM, begun, job=own.job))
        made.blocking.run(begin(made.blocking.offloader, OPTIONS))
        before = manifest(made).commit_id

        with pytest.raises(StreamDeleted, match="begun again since"):
            task(made, own, 0, 10)

        assert manifest(made).commit_id == before


@pytest.mark.parametrize("use", ["it existed", "rows", "an attempt", "a claim"])
def test_a_failed_write_deletes_no_stream_that_is_in_use(use: str) -> None:
    with tier() as made:
        begun = made.blocking.run(begin(made.blocking.offloader, OPTIONS))
        if use == "it existed":
            begun = made.blocking.run(begin(made.blocking.offloader, OPTIONS))
        elif use == "rows":
            finish(made, task(made, ticket(made), 0, 10))
        elif use == "an attempt":
            task(made, ticket(made), 0, 10)
        else:
            made.blocking.run(StreamWriter.claim(made.blocking.offloader, STREAM))
        before = manifest(made).commit_id

        made.blocking.run(withdraw(made.blocking.offloader, STREAM, begun, job=uuid4()))

        assert manifest(made).commit_id == before


def test_a_write_is_found_by_its_name_anywhere_in_the_stream(opened: Tier) -> None:
    for number in range(5):
        own = ticket(opened, f"batch {number}")
        finish(
            opened,
            *(
                task(opened, own, *span)
                for span in ((number * 10, number * 10 + 4), (number * 10 + 4, number * 10 + 10))
            ),
        )
    for name, found in (("batch 0", range(10)), ("batch 3", range(30, 40)), ("batch 9", None), ("", None)):
        token = ticket(opened, name).token
        asked = find_write(opened.blocking.offloader, manifest(opened), token)
        assert opened.blocking.run(asked) == found


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"stream": "a"}, "path is missing"),
        ({"path": "/t"}, "the option stream is missing"),
        ({"path": "/t", "stream": "a", "topic": "b"}, "there is no option 'topic'"),
        ({"path": "/t", "stream": "a", "firstOffset": "-1"}, "a whole number from 0 on"),
        ({"path": "/t", "stream": "a", "storageOptions": "[]"}, "a JSON object"),
    ],
)
def test_wrong_options_are_refused_by_name(given: dict[str, str], said: str) -> None:
    with pytest.raises(Misuse, match=said):
        WriteOptions.of(given)
