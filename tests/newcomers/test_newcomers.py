"""Bugs that were written blind: a proof shows each without the suite, and the command catches it.

`make test` runs a few proofs and single clauses. The campaign runs all proofs, and the real command with
default options on each bug. That takes about half an hour.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from campaign import few, keeping
from conformance_box.conftest import site
from conformance_box.installed import Site, box

from newcomers.everything import BUGS
from newcomers.registry import Proof
from newcomers.run import install, judged, tail_of

PROVED: Final = ("no_tier_has_no_streams", "no_offsets_are_all_offsets", "folder_again_on_each_page")
"""Cheap proofs: of a database, of a tier on a store, and of a client of a service."""

CLAUSES: Final = {
    "counts_what_is_wanted": "reads_are_verbatim_when_narrowed",
    "cut_is_damaged": "views_find_what_is_committed",
    "cut_view_is_whole": "views_find_what_is_committed",
    "delete_below_an_object": "deletion_is_idempotent",
    "empty_page_ends": "uploads_may_have_many_parts",
    "failed_is_over": "uploads_lack_no_part",
    "first_fragment_speaks_for_all": "deletion_spares_the_committed",
    "follows_the_times": "views_do_not_move",
    "gone_by_another_name": "deletion_takes_what_was_trimmed",
    "gone_handle_is_damaged": "deletion_takes_what_was_trimmed",
    "gone_is_corrupt": "deletion_takes_what_was_trimmed",
    "hints_are_not_checked": "damage_is_an_error",
    "jobs_are_copies": "jobs_outlive_claims",
    "joined_reads": "a_cancelled_call_hinders_no_other",
    "known_to_exist": "create_never_replaces",
    "last_fragment_is_not_checked": "offloads_are_checked",
    "last_of_many_stays": "deletion_takes_any_number_of_keys",
    "leftovers_are_asked_for_once": "leftovers_are_one_chain",
    "leftovers_end_with_the_first_ledger": "leftovers_are_one_chain",
    "leftovers_of_others_than_the_committer": "leftovers_are_of_earlier_writers",
    "manifest_on_self": "history_is_linear",
    "max_of_the_first": "numbers_are_exact",
    "metadata_of_two_kilobytes": "extra_metadata_is_any_text",
    "names_the_attempt": "views_do_not_move",
    "no_offsets_are_all_offsets": "reads_are_verbatim_when_narrowed",
    "nothing_before_the_epoch": "views_find_what_is_committed",
    "offsets_are_text_of_ten_digits": "leftovers_are_one_chain",
    "offsets_have_a_sign": "numbers_are_exact",
    "one_read_for_all": "receipts_tell_what_was_copied",
    "only_ends_one_further": "reads_are_verbatim_when_narrowed",
    "position_in_the_window": "offloads_are_checked",
    "refuses_after_the_upload": "prepared_before_uploaded",
    "remembered_size": "reads_are_never_stale",
    "streams_unquoted": "streams_are_listed_by_name",
    "times_have_no_sign": "receipts_tell_what_was_copied",
    "tracking_is_not_checked": "offloads_are_checked",
    "walks_from_what_it_holds": "numbers_that_nothing_has_find_nothing",
}
"""Bugs that the first run of their set missed, and the clauses that were widened to catch them."""

__all__ = ["site"]

NewTail = Callable[[str], str]


@pytest.fixture
def new_tail(tmp_path: Path) -> NewTail:
    """Return the rest of a `newcomer://` URL for a new place."""
    numbers = count()

    def tail(name: str) -> str:
        folder = tmp_path / f"{name}-{next(numbers)}"
        folder.mkdir()
        return tail_of(name, folder)

    return tail


async def tried(proof: Proof, opens: Callable[[], Any]) -> None:
    """Run the proof within a minute, and close every client that it opened."""
    opened: list[Any] = []

    def open_() -> Any:
        opened.append(opens())
        return opened[-1]

    try:
        async with asyncio.timeout(60):
            await proof(open_)
    finally:
        for each in opened:
            with suppress(Exception):  # the bug may be in `aclose` too
                async with asyncio.timeout(2):
                    await each.aclose()


@pytest.mark.parametrize("name", keeping(PROVED, BUGS, "proofs of bugs that were written blind"))
def test_a_proof_passes_on_the_sound_class_and_fails_on_the_bug(name: str, new_tail: NewTail) -> None:
    bug = BUGS[name]
    sound, broken = f"newcomer://{new_tail(name)}", f"newcomer://{new_tail(name)}"

    asyncio.run(tried(bug.proof, lambda: bug.sound(sound)))

    with pytest.raises(Exception) as shown:  # noqa: PT011 - a mistake may show in any way
        asyncio.run(tried(bug.proof, lambda: bug.backend(broken)))
    found = shown.value
    is_stale = isinstance(found, NameError) or (isinstance(found, AttributeError) and found.obj is not None)
    assert not is_stale, "the bug uses a name of the code that is gone"


@few("bugs that were written blind, each by its clause; make test has a sixth of them", 6)
@pytest.mark.parametrize("name", CLAUSES)
def test_a_clause_catches_a_bug_that_was_written_blind(name: str, site: Site, new_tail: NewTail) -> None:
    install(BUGS[name].backend, site)
    clause = f"{'store' if BUGS[name].kind == 'store' else 'contract'}/{CLAUSES[name]}"

    ran = box(f"newcomer://{new_tail(name)}", "--select", clause, "--seed", "0", "--json")

    failed = [each["id"] for each in ran.document["clauses"] if each["outcome"] == "failed"]
    assert (ran.code, failed) == (1, [clause])


COMMANDS: Final = keeping((), BUGS, "the whole command on bugs that were written blind")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_catches_a_bug_with_default_options(name: str, new_tail: NewTail, tmp_path: Path) -> None:
    """The command may fail by a clause, by an error before the first one, or by never ending. It must not
    pass.
    """
    found = judged(BUGS[name].backend, new_tail(name), tmp_path)

    assert found.code != 0, "no clause failed"
