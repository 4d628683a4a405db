"""The five questions of an incident, each with its answer and the command that helps.

    running    is it running?
    behind     how far behind is the tier?
    waiting    what is it waiting for?
    loss       what would be lost if the source's disk died now?
    cost       what does it cost?

The answers come from previews of the streams, and from the process if one answers. Nothing is asked here.

Invariant: a number that is not known is never shown as 0. It is "at least" what is known, or "not known".
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from offload.cli.kit.output import counted, size_text
from offload.service.asking import AskedProcess
from offload.service.costs import MonthlyCost
from offload.service.preview import StreamPreview

__all__ = ["Answer", "Incident"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A question, its answer in one line, and the command that shows more or helps."""

    question: str
    answer: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """The facts about a source, its tier and its process that the answers come from."""

    arguments: Sequence[str]
    """CONFIG, or SOURCE and TIER, as they were given on the command line."""

    tier: str
    streams: Sequence[StreamPreview]
    left_out: int
    """The number of streams that the configuration leaves out."""

    process: AskedProcess
    cost: MonthlyCost | None

    def answers(self) -> list[Answer]:
        """Return the answers, in the order in which they are asked."""
        return [self._running(), self._behind(), self._waiting(), self._loss(), self._cost()]

    def _running(self) -> Answer:
        question, process = "Is it running?", self.process
        if process.status is not None:
            answer = f"yes: it {process.status['summary']}"
            return Answer(question=question, answer=answer, command=process.command("/status"))
        answer = "not known: the configuration has no `listen`"
        if process.url is not None:
            answer = f"no process answers on {process.url}: {process.error}"
        return Answer(question=question, answer=answer, command="systemctl status offload")

    def _behind(self) -> Answer:
        lagging = [each for each in self.streams if each.lag_records]
        command = self._command("run", "--check")
        if self.process.status is not None:
            command = self.process.command("/readyz")
        if not lagging:
            answer = f"no stream is behind{self._beyond()}"
        else:
            oldest = max(each.lag_seconds for each in lagging)
            answer = (
                f"{len(lagging)} of {counted(len(self.streams), 'stream')}, by {self._lacking()}; "
                f"the oldest is {oldest:.0f} s old{self._beyond()}"
            )
        return Answer(question="How far behind is the tier?", answer=answer, command=command)

    def _waiting(self) -> Answer:
        found = [each.problem for each in self.streams if each.error is not None]
        if self.process.status is not None:
            found = [*map(str, self.process.status.get("problems", ())), *found]
        more = f" (and {len(found) - 1} more)" if found[1:] else ""
        answer = f"{found[0]}{more}" if found else "nothing"
        command = self._command("run", "--check")
        return Answer(question="What is it waiting for?", answer=answer, command=command)

    def _loss(self) -> Answer:
        lost = [each for each in self.streams if each.lag_records]
        answer = f"nothing that is not on the tier{self._beyond()}"
        if lost:
            answer = f"{self._lacking()} that no other replica has{self._beyond()}"
        if self.left_out:
            answer += f"; and {counted(self.left_out, 'stream')} with `follow = false`"
        return Answer(
            question="What would be lost if the source's disk died now?",
            answer=answer,
            command=f"offload verify {shlex.quote(self.tier)}",
        )

    def _cost(self) -> Answer:
        answer = "not known for this store"
        if self.cost is not None:
            total = self.cost.requests + self.cost.storage
            least = "at least " if self.cost.unknown else ""
            answer = f"{least}{total:,.2f} a month at the prices of {self.cost.price.provider}"
        return Answer(
            question="What does it cost?", answer=answer, command=self._command("status", "--unused")
        )

    def _lacking(self) -> str:
        records = sum(each.lag_records for each in self.streams)
        size_bytes = sum(each.lag_size_bytes for each in self.streams)
        return f"{counted(records, 'record')}, {size_text(size_bytes)}"

    def _beyond(self) -> str:
        # The lag of a stream that goes on in a new part was compared with a part that does not fit.
        unknown = sum(each.error is not None or each.begins_part for each in self.streams)
        return f"; not known for {counted(unknown, 'stream')} that cannot be compared" if unknown else ""

    def _command(self, name: str, option: str) -> str:
        return shlex.join(["offload", name, option, *self.arguments])
