"""The progress that `offload spark copy` shows, from the reports of the job."""

from __future__ import annotations

from offload_spark.copying import _Told
from offload_spark.jobs.transfer import TransferProgress

from offload.cli.kit.progress import CommandProgress


def test_a_bar_counts_the_pieces_of_a_stream_and_the_bytes_of_all() -> None:
    shown: list[CommandProgress] = []
    told = _Told(shown.append)

    told(TransferProgress(stream="a", taken_over=2))
    told(TransferProgress(stream="a", taken_over=2, pieces=4, pieces_done=4, bytes=100))
    told(TransferProgress(stream="b", taken_over=0, pieces=8, pieces_done=2, bytes=30))

    assert [(seen.what, seen.done, seen.total, seen.size_bytes) for seen in shown] == [
        ("checking an earlier run's uploads of a", 0, None, 0),
        ("copying a", 4, 4, 100),
        ("copying b", 2, 8, 130),
    ]
