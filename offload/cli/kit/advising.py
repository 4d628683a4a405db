"""The commands that help after an error about a stream, in full, with the options of its tier.

Invariants: a value that may be secret is shown as `...`, since the lines are logged. Each command can be
copied into a shell. The page is named by the command that prints it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from offload.ground.errors import (
    Absent,
    AnchorLost,
    Corrupt,
    Denied,
    Diverged,
    Divergence,
    NoSpace,
    NoSuchKey,
    OffloadError,
    RootsLost,
    StoreDenied,
    StreamDeleted,
    UnsupportedFormat,
)
from offload.ground.urls import names_secret
from offload.model.own_names import own_name

__all__ = ["Advice", "shown_pairs"]

PAGE = "a-sync-stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Advises about the streams of one source on one tier."""

    source: str = ""
    tier: str = ""
    options: Sequence[str] = ()
    """The words of the tier's options, for commands that read no configuration."""
    source_options: Sequence[str] = ()
    keys: str | None = None
    encrypt_of: Callable[[str], str | None] = lambda stream: None
    """Returns the master key of a stream. None if it is not to be encrypted."""
    check: Sequence[str] = ()
    """The command that says what fails now."""
    status: Sequence[str] = ()
    """The command that says how late the streams are."""
    config: str | None = None
    """The configuration of the process that follows the streams. None if it has none."""
    is_running: bool = False
    """Whether a process follows the streams, and can be told to try again."""

    def of(self, stream: str, error: OffloadError | None) -> str:
        """Return the end of a line about a stream: what to run, and what to read."""
        if error is None:
            return f"; run: {shlex.join(self.status)}"
        commands, section = self._of(stream, error)
        if commands and self.is_running:
            config = [] if self.config is None else ["--config", self.config]
            commands.append(["offload", "ctl", "retry", own_name(stream), *config])
        ran = "".join(f"; {word}: {shlex.join(each)}" for word, each in zip(_WORDS, commands, strict=False))
        if "offload help" in str(error):
            return ran
        return f"{ran}; see: offload help {section}"

    def of_source(self) -> str:
        """Return the end of a line about a source whose streams cannot be listed."""
        return f"; run: {shlex.join(self.check)}; see: offload help run#run-it"

    def _of(self, stream: str, error: OffloadError) -> tuple[list[list[str]], str]:
        """Return the commands, and the section of the page."""
        check = [*self.check]
        match error:
            case Absent() | RootsLost() | AnchorLost() if "offload rebuild" in str(error):
                return [], f"lost-roots{self._with_options()}"  # the text ends with the command
            case Diverged(kind=Divergence.GAP | Divergence.FORK):
                return [self._sync(stream, "--new-part")], f"{PAGE}#begin-a-new-part"
            case Diverged():
                return [[*self.status]], f"{PAGE}#begin-a-new-part"
            case StreamDeleted():
                return [self._sync(stream)], "retention-and-sweeping#delete-a-stream"
            case NoSpace():
                return [["offload", "sweep", self.tier, *self.options]], f"{PAGE}#make-room-on-the-tier"
            case NoSuchKey():
                return [check], f"{PAGE}#a-master-key-is-gone"
            case StoreDenied() if self.is_running:
                return [check], f"{PAGE}#give-it-new-credentials"
            case Denied():
                return [check], f"{PAGE}#ask-the-store"
            case Corrupt() if "damaged chunk" in str(error):
                return [check], f"{PAGE}#repair-the-source"
            case Corrupt():
                return [["offload", "verify", self.tier, stream, *self.options]], f"{PAGE}#damage-on-the-tier"
            case UnsupportedFormat():
                return [check], "upgrade"
        return [check], f"{PAGE}#ask-the-store"

    def _sync(self, stream: str, *more: str) -> list[str]:
        words = ["offload", "sync", self.source, self.tier, *self.options, *self.source_options]
        if self.keys is not None:
            words += ["--keys", self.keys]
        if (key := self.encrypt_of(stream)) is not None:
            words += ["--encrypt", key]
        return [*words, "--stream", stream, *more]

    def _with_options(self) -> str:
        return f"; with the options of the tier: {shlex.join(self.options)}" if self.options else ""


_WORDS = ("run", "then")


def shown_pairs(flag: str, pairs: Sequence[str]) -> list[str]:
    """Return `NAME=VALUE` options as words to print, without values that may be secret."""
    return [
        word
        for name, _, value in (pair.partition("=") for pair in pairs)
        for word in (flag, f"{name}={'...' if names_secret(name) else value}")
    ]
