"""The judgement of one stream's objects, for `upkeep.verify.tier`, in order of keys."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import cast
from uuid import UUID

from offload.commit.groups import fetch_group
from offload.commit.log import RootLog, decode_named_root
from offload.contracts.store import Listed, ObjectStore
from offload.formats.fragment import FragmentTail
from offload.formats.group import Group
from offload.formats.keys import TIER_PREFIX, VERIFY_NOTES, StreamKeys
from offload.ground.errors import (
    Absent,
    Corrupt,
    NotFound,
    NotOffloaded,
    TryAgain,
)
from offload.model.entry import Entries, Entry
from offload.model.manifest import CommittedStream, Manifest, StreamState
from offload.model.tree import EntryTree, LoadGroup
from offload.native.fragment_check import CheckedFragment, check_fragment
from offload.native.fragment_reader import check_entry
from offload.native.lost_roots import (
    Trailers,
    loss_shown_by_base,
    loss_shown_by_group,
    loss_shown_by_old_life,
    trailers_of,
)
from offload.store.checked import checked
from offload.upkeep.pages import ListedPage
from offload.upkeep.verify.groups import ReadGroups
from offload.upkeep.verify.indexes import judge_index
from offload.upkeep.verify.keys import KeyJudge, ReadKeys
from offload.upkeep.verify.notes import judge_note
from offload.upkeep.verify.page import NamedHere, named_in
from offload.upkeep.verify.report import VerifyLevel, VerifyReport, counting, explain

Judge = Callable[[VerifyReport], Awaitable[None]]
"""Judges one object, and adds the findings to a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJudge:
    """Judges the objects of one page by the root that was the newest after the page was listed."""

    store: ObjectStore
    log: RootLog
    level: VerifyLevel
    keys: StreamKeys
    newest: Manifest | None
    named: NamedHere
    groups: ReadGroups
    reload: Callable[[], Awaitable[Manifest | None]]
    read_keys: ReadKeys

    async def judge(self, key: str, listed: Listed | None, report: VerifyReport) -> None:
        """Judge one object that is listed or named, or both."""
        if (entry := self.named.fragments.get(key)) is not None:
            await self._named(key, listed, entry, report)
        elif (group := self.named.groups.get(key)) is not None:
            await self._group(key, listed, group, report)
        elif listed is None or key == self.keys.anchor:
            return  # the anchor was judged to find the stream's name
        elif (version := self.keys.parse_root(key)) is not None:
            await self._root(key, version, report)
        elif (fragment := self.keys.parse_fragment(key)) is not None:
            await self._unnamed(listed, *fragment, report)
        elif (companion := self.keys.parse_companion(key)) is not None:
            await self._companion(key, *companion, report)
        elif (parsed := self.keys.parse_group(key)) is not None:
            await self._unnamed_group(key, first_offset=parsed[0], version=parsed[1], report=report)
        elif self.keys.parse_key_object(key) is not None:
            judge = KeyJudge(
                store=self.store, log=self.log, newest=self.newest, reload=self.reload, read=self.read_keys
            )
            await judge.judge(key, report, level=self.level)
        elif (index := self.keys.parse_index(key)) is not None:
            await judge_index(
                self.store,
                self.log,
                listed,
                index,
                newest=self.newest,
                level=self.level,
                report=report,
            )
        elif (note := self.keys.parse_note(key)) is not None:
            await judge_note(self.store, self.log, key, note, newest=self.newest, report=report)
        elif self.keys.parse_sighting(key) is not None:
            explain(report, key, reason="a sweep's note of what it found; a later sweep uses and removes it")
        else:
            await explain_strange(key, report)

    async def _root(self, key: str, version: int, report: VerifyReport) -> None:
        """Read a root whole. Below the level `bytes` a superseded root is skipped: no reader needs it."""
        if self.level is not VerifyLevel.BYTES and self.newest is not None and version < self.newest.version:
            return
        decode = partial(decode_named_root, stream=self.keys.stream, version=version, where=key)
        with suppress(NotFound):  # superseded, and swept since it was listed
            await checked(self.store, key, counting(report, decode))

    async def _group(self, key: str, listed: Listed | None, entry: Entries, report: VerifyReport) -> None:
        """Judge a named group. If it was not listed, it was committed since, or is gone: fetch it now."""
        assert self.newest is not None
        groups = self.groups if listed is not None else ReadGroups(store=self.store)
        try:
            size_bytes = await groups.size_bytes(self.newest, entry)
        except Absent:
            if await self._is_still_named(key):
                raise Absent(key, self.keys.stream, tier=self.store.url) from None
            return
        _count(report, size_bytes)
        if listed is not None and listed.size_bytes != size_bytes:
            raise Corrupt("object size", key, expected=size_bytes, found=listed.size_bytes)

    async def _named(self, key: str, listed: Listed | None, entry: Entry, report: VerifyReport) -> None:
        try:
            # A fragment that was committed since the listing is named and not listed.
            await self._check_named((listed or await self._list_now(key)).size_bytes, key, entry, report)
        except NotFound:
            if await self._is_still_named(key):
                raise Absent(key, self.keys.stream, tier=self.store.url) from None

    async def _list_now(self, key: str) -> Listed:
        async with aclosing(cast("AsyncGenerator[Listed, None]", self.store.list(key))) as rows:
            async for row in rows:
                if row.key == key:
                    return row
        raise NotFound(key, store=self.store.url)

    async def _check_named(self, size_bytes: int, key: str, entry: Entry, report: VerifyReport) -> None:
        if size_bytes != entry.stored_size_bytes:
            report.objects += 1
            raise Corrupt("object size", key, expected=entry.stored_size_bytes, found=size_bytes)
        if self.level is VerifyLevel.BYTES:
            await self._check_bytes(size_bytes, key, entry, report)
            return
        stored = await self.store.stored_crc32c(key) if self.level is VerifyLevel.CHECKSUM else entry.checksum
        report.objects += 1
        if stored is None:
            report.not_compared += 1
        elif stored != entry.checksum:
            raise Corrupt("stored checksum", key, expected=entry.checksum, found=stored)

    async def _check_bytes(self, size_bytes: int, key: str, entry: Entry, report: VerifyReport) -> None:
        assert self.newest is not None
        try:
            checked = await self._read_whole(key, size_bytes, report, tail_size_bytes=entry.tail_size_bytes)
        except Corrupt:
            _count(report, size_bytes)
            raise
        _count(report, size_bytes)
        if checked.checksum != entry.checksum:
            raise Corrupt("object checksum", key, expected=entry.checksum, found=checked.checksum)
        report.not_opened += not checked.is_opened
        check_entry(checked.tail.trailer, self.newest, entry, where=key)

    async def _read_whole(
        self, key: str, size_bytes: int, report: VerifyReport, *, tail_size_bytes: int | None = None
    ) -> CheckedFragment:
        """Read a fragment whole, and check its chunks too if its key opens.

        Raises `Corrupt` if its key is lost and a manifest names the fragment.
        """

        async def opens(tail: FragmentTail) -> bool:
            opened = await self.read_keys.opens(tail, report, where=key)
            # The root is loaded after the loss: the stream may have been deleted and swept meanwhile.
            if isinstance(opened, Corrupt) and await self._is_still_named(key):
                raise opened
            return opened is True

        ring = self.read_keys.ring
        return await check_fragment(
            self.store, key, size_bytes=size_bytes, tail_size_bytes=tail_size_bytes, ring=ring, opens=opens
        )

    async def _unnamed(self, listed: Listed, first_offset: int, attempt: UUID, report: VerifyReport) -> None:
        reason = _reason(attempt, self.newest)
        if self.named.hides(first_offset):
            reason = "the group that would say whether it is named is damaged"
        explain(report, listed.key, attempt=attempt, reason=reason)
        try:
            trailers = await self._trailers(listed, report)
        except Corrupt:
            # It was damaged before a repair put a copy in its place, and it is needed no more.
            if not await self._is_replaced(first_offset):
                raise
            report.unreferenced.pop()
            reason = "damaged, and a copy of its records is in its place; a sweep deletes it"
            explain(report, listed.key, attempt=attempt, reason=reason)
            return
        if self.newest is None:
            return
        for _, trailer in trailers:
            loss = loss_shown_by_base(self.log, listed.key, trailer.base_version, self.newest)
            if loss is None:
                # Such an error is of the first named fragment, which is judged in its own turn.
                with suppress(Corrupt, TryAgain):
                    loss = await loss_shown_by_old_life(self.log, trailers, self.newest)
            if loss is not None:
                report.unreferenced.clear()  # a lost root may have named it: it is not called unreferenced
                raise loss

    async def _is_replaced(self, first_offset: int) -> bool:
        """Return True if the newest root names a copy at this offset."""
        if self.newest is None:
            return False
        try:
            entry = await EntryTree(self.newest, self.groups.load).find(first_offset)
        except Corrupt:  # a damaged group
            return False
        return entry is not None and bool(entry.copied)

    async def _companion(
        self, key: str, first_offset: int, attempt: UUID, name: str, report: VerifyReport
    ) -> None:
        """Say whose companion it is. This program knows no kind of companions, so it reads none."""
        reason = f"a companion ({name}) of a fragment that no manifest names; a sweep deletes it with that"
        if self.newest is None or self.named.hides(first_offset):
            reason = f"a companion ({name}) of a fragment; whether that is named is not known"
        else:
            tree = EntryTree(self.newest, self.groups.load)
            if await tree.names(first_offset, attempt):
                reason = f"a companion ({name}) of a fragment, made by a program that knows such companions"
        explain(report, key, attempt=attempt, reason=reason)

    async def _trailers(self, listed: Listed, report: VerifyReport) -> Trailers:
        """Return the trailer of the fragment; an empty list if there is none to read."""
        if self.level is not VerifyLevel.BYTES:
            return await trailers_of(self.log, [listed], at_once=1)
        try:
            checked = await self._read_whole(listed.key, listed.size_bytes, report)
        except NotFound:  # swept since it was listed
            return []
        _count(report, listed.size_bytes)
        return [(listed.key, checked.tail.trailer)]

    async def _unnamed_group(
        self, key: str, *, first_offset: int, version: int, report: VerifyReport
    ) -> None:
        if self.newest is not None and (loss := loss_shown_by_group(self.log, key, self.newest)) is not None:
            raise loss
        explain(report, key, reason=self._why_group(first_offset=first_offset, version=version))
        if self.level is not VerifyLevel.BYTES:
            return
        decode = partial(Group.decode, stream=self.keys.stream, where=key)
        with suppress(NotFound):  # swept since it was listed
            group = await checked(self.store, key, counting(report, decode))
            if group.key != key:
                raise Corrupt("key", key, expected=key, found=group.key)

    def _why_group(self, *, first_offset: int, version: int) -> str:
        if self.newest is None:
            return "no sound root says whether it is named"
        if self.named.hides(first_offset):
            return "the group that would say whether it is named is damaged"
        if version > self.newest.version:
            return "a commit is under way, or a crash left it; the next commit settles that"
        if first_offset < self.newest.first_offset:
            return "its fragments were trimmed, or a commit that lost made it; no reader needs it any more"
        return "a commit that lost, or one that was superseded, made it; no manifest will ever name it"

    async def _is_still_named(self, key: str) -> bool:
        """Return whether the newest root names an object that is gone.

        The root is loaded after the object was missed: a trim and a sweep may have come in between.
        """
        try:
            newest = await self.reload()
        except NotOffloaded:
            return False
        if newest is None:
            return False
        load: LoadGroup = partial(_load_group, self.store)
        just_it = ListedPage(part="", after=key[:-1], rows=[Listed(key, 0)], is_last=False)
        named = await named_in(just_it, newest, load)
        return key in named.fragments or key in named.groups


async def _load_group(store: ObjectStore, committed: CommittedStream, entry: Entries) -> Entries:
    return (await fetch_group(store, committed, entry)).entries


def _count(report: VerifyReport, size_bytes: int) -> None:
    report.objects += 1
    report.bytes += size_bytes


async def explain_strange(key: str, report: VerifyReport) -> None:
    """Report an object that is not of this format."""
    reason = "not an object of this format; no command touches it"
    if key == VERIFY_NOTES:
        reason = "how far the verify of offload run has read the tier"
    elif key.startswith(TIER_PREFIX):
        reason = (
            "of a trial of the store that runs or was interrupted; nothing reads it, and a sweep removes it"
        )
    explain(report, key, reason=reason)


def _reason(attempt: UUID, newest: Manifest | None) -> str:
    if newest is None:
        return "no sound root says whether it is named"
    if newest.state is StreamState.DELETED:
        return "the stream was deleted; no manifest will ever name it again"
    if newest.runs(attempt):
        return "its attempt runs: an upload is under way, or a crash left it and the next sync decides on it"
    return "trimmed, replaced by a copy, or of an upload that was given up; a sweep deletes it"
