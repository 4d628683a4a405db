"""The choice of a side, compared with a model that is a set of offsets for each side."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from offload.ground.errors import TryAgain
from offload.two_sides.choice import Extent, Failure, Read, ReadSide, SkipTo, next_step

ENDS = st.integers(0, 12)


@st.composite
def extents(draw: st.DrawFn) -> Extent:
    first, end = sorted((draw(ENDS), draw(ENDS)))
    begin, failed = sorted((draw(ENDS), draw(ENDS)))
    failure = Failure(begin, failed, TryAgain("down")) if begin < failed and draw(st.booleans()) else None
    return Extent(first, end, failure)


def readable(extent: Extent) -> set[int]:
    failure = extent.failure
    failed = set() if failure is None else {*range(failure.begin, failure.end)}
    return {*range(extent.first, extent.end)} - failed


@given(preferred=extents(), other=extents(), offset=ENDS)
def test_a_side_is_read_as_long_as_it_is_the_best_and_only_what_nobody_has_is_skipped(
    preferred: Extent, other: Extent, offset: int
) -> None:
    best, second = readable(preferred), readable(other)

    step = next_step([(ReadSide.TIER, preferred), (ReadSide.LOCAL, other)], offset)

    later = {at for at in best | second if at >= offset}
    match step:
        case Read(ReadSide.TIER, until):
            assert {*range(offset, until)} <= best
            assert until not in best
        case Read(ReadSide.LOCAL, until):
            assert {*range(offset, until)} <= second - best
            assert until in best or until not in second
        case SkipTo(at):
            assert at > offset
            assert at == min(later) if later else at == max(preferred.end, other.end)
        case None:
            assert not later
            assert max(preferred.end, other.end) <= offset
    if isinstance(step, Read):
        assert step.until > offset
