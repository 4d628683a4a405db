"""The five questions of an incident, each with its answer and the command that helps.

    running    is it running?
    behind     how far behind is the tier?
    waiting    what is it waiting for?
    loss       what would be lost if the source's disk died now?
    cost       what does it cost?

The answers come from previews of the streams, and from the process if one answers. Nothing is asked here.

Invariant: an answer says what was seen. A number that is not known is never shown as 0. It is "at least" what
is known, or "not known, because" with the reason. The absence of an error or of a record shows nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from offload.cli.kit.output import counted, size_text
from offload.cli.run_check import NO_PRICES
from offload.service.client import AskedProcess
from offload.service.costs import MonthlyCost
from offload.service.preview import StreamPreview

__all__ = ["Answer", "Incident", "reason_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A question, its answer in one line, and the command that shows more or helps."""

    question: str
    answer: str | None
    """None if nothing of it is known."""

    unknown: str | None = None
    """Why the answer is not known, or not all of it."""

    command: str

    @property
    def text(self) -> str:
        """The answer for people."""
        return self.answer or f"not known, because {self.unknown}"


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
        command = "systemctl status offload"
        if process.url is not None:
            return Answer(question=question, answer=self._no_process(), command=command)
        return Answer(question=question, answer=None, unknown=self._no_process(), command=command)

    def _no_process(self) -> str:
        if self.process.url is None:
            return "the configuration has no `listen`"
        return f"no process answers on {self.process.url}: {self.process.error}"

    def _behind(self) -> Answer:
        lagging = [each for each in self.streams if each.lag_records]
        command = self._command("run", "--check")
        if self.process.status is not None:
            command = self.process.command("/readyz")
        answer = None
        if lagging:
            oldest = max(each.lag_seconds for each in lagging)
            answer = (
                f"{len(lagging)} of {counted(len(self.streams), 'stream')}, by {self._lacking()}; "
                f"the oldest is {oldest:.0f} s old{self._beyond()}"
            )
        elif not self.streams:
            answer = "there is no stream to compare"
        elif not self._unknown:
            answer = "no stream is behind"
        elif len(self._unknown) < len(self.streams):
            answer = f"no stream that could be compared is behind{self._beyond()}"
        elif lags := self.process.lags:
            streams = counted(len(lags), "stream")
            answer = f"{streams}, says the process; the oldest is {max(lags):.0f} s old{self._beyond()}"
        return self._answer("How far behind is the tier?", answer, command)

    def _waiting(self) -> Answer:
        found = [each.problem for each in self.streams if each.error is not None]
        if self.process.status is not None:
            found = [*map(str, self.process.status.get("problems", ())), *found]
        command = self._command("run", "--check")
        question = "What is it waiting for?"
        if found:
            more = f" (and {len(found) - 1} more)" if found[1:] else ""
            return Answer(question=question, answer=f"{found[0]}{more}", command=command)
        if self.process.status is not None:
            return Answer(question=question, answer="nothing", command=command)
        answer = f"nothing that source and tier show; not known of a process, because {self._no_process()}"
        return Answer(question=question, answer=answer, unknown=self._no_process(), command=command)

    def _loss(self) -> Answer:
        lost = [each for each in self.streams if each.lag_records]
        left_out = f"{counted(self.left_out, 'stream')} with `follow = false`" if self.left_out else ""
        answer = None
        if lost:
            answer = f"{self._lacking()} that no other replica has{self._beyond()}"
        elif not self.streams:
            answer = None if left_out else "there is no stream to compare"
        elif not self._unknown:
            answer = "nothing that is not on the tier"
        elif len(self._unknown) < len(self.streams):
            answer = f"nothing of the streams that could be compared{self._beyond()}"
        if left_out:
            answer = f"{answer}; and {left_out}" if answer else f"{left_out}{self._beyond()}"
        question = "What would be lost if the source's disk died now?"
        return self._answer(question, answer, f"offload verify {shlex.quote(self.tier)}")

    def _cost(self) -> Answer:
        question, command = "What does it cost?", self._command("status", "--unused")
        if self.cost is None or self.cost.is_unknown:
            reason = NO_PRICES if self.cost is None else self._reason()
            return Answer(question=question, answer=None, unknown=reason, command=command)
        total = self.cost.requests + self.cost.storage
        least = "at least " if self.cost.unknown else ""
        answer = f"{least}{total:,.2f} a month at the prices of {self.cost.price.provider}"
        return Answer(question=question, answer=answer, command=command)

    def _answer(self, question: str, answer: str | None, command: str) -> Answer:
        """Return an answer about all streams, with the reason why it is not known for some of them."""
        unknown = self._reason() if self._unknown else None
        return Answer(question=question, answer=answer, unknown=unknown, command=command)

    @property
    def _unknown(self) -> list[str]:
        """Why it is not known how far the tier is behind, for each stream of which it is not known."""
        return [each.unknown_because for each in self.streams if each.unknown_because]

    def _reason(self) -> str:
        return reason_of(self._unknown)

    def _lacking(self) -> str:
        records = sum(each.lag_records for each in self.streams)
        size_bytes = sum(each.lag_size_bytes for each in self.streams)
        return f"{counted(records, 'record')}, {size_text(size_bytes)}"

    def _beyond(self) -> str:
        if not self._unknown:
            return ""
        return f"; not known for {counted(len(self._unknown), 'stream')}, because {self._reason()}"

    def _command(self, name: str, option: str) -> str:
        return shlex.join(["offload", name, option, *self.arguments])


def reason_of(reasons: Sequence[str]) -> str:
    """Return the first of several reasons, and the number of the others."""
    more = f" (and {counted(len(reasons) - 1, 'more stream')})" if reasons[1:] else ""
    return f"{reasons[0]}{more}"
