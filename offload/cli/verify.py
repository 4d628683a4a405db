"""`offload verify`: check the objects of a tier against manifest and checksums, at one of three levels."""

from __future__ import annotations

from typing import Annotated

import typer

from offload.cli.kit.arguments import EachObject, EncryptedOnly, Keys, OnlyStream, Options, Tier
from offload.cli.kit.ending import Usage
from offload.cli.kit.findings import exit_code, show_findings, show_not_opened, verdict
from offload.cli.kit.names import known_name
from offload.cli.kit.output import counted, print_json, print_note, print_notes, print_objects, size_text
from offload.cli.kit.progress import CommandProgress, progress
from offload.cli.kit.quantities import parse_size
from offload.cli.kit.state import CommandContext, run_async
from offload.contracts.events import DamageFound
from offload.ground.errors import OffloadError
from offload.upkeep.verify.report import VerifyLevel, VerifyReport
from offload.upkeep.verify.tier import verify as verify_tier

Level = Annotated[
    VerifyLevel,
    typer.Option(
        help="manifest: check that every referenced object exists and has the right size. checksum: also "
        "compare the store's own checksum, if it keeps one. bytes: read every object whole."
    ),
]
After = Annotated[
    str, typer.Option(metavar="OBJECT", help="Resume after this object, as printed by an interrupted run.")
]
ReadRate = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Read at most this much per second, for example 50MiB.")
]


def verify(
    context: typer.Context,
    tier: Tier,
    stream: OnlyStream = None,
    level: Level = VerifyLevel.BYTES,
    after: After = "",
    rate: ReadRate = None,
    keys: Keys = None,
    encrypted_only: EncryptedOnly = False,
    verbose: EachObject = False,
    option: Options = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> int:
    """Verify the checksum, key and manifest entry of every object in TIER."""
    state: CommandContext = context.obj.with_keys(keys, encrypted_only=encrypted_only)
    report, read_rate = _begun(level, encrypted_only=encrypted_only), _rate(rate)

    async def main() -> None:
        async with state.opened_to_read(tier, option) as catalogue:
            with progress(json=json) as show:
                await verify_tier(
                    catalogue,
                    stream=None if stream is None else await known_name(catalogue, stream),
                    level=level,
                    after=after,
                    bytes_per_second_max=read_rate,
                    report=report,
                    progress=lambda seen: show(_seen(seen)),
                )
            print_notes([f"not proved: {each}" for each in catalogue.unproved])

    try:
        run_async(main)
    except (KeyboardInterrupt, OffloadError) as stop:
        _tell_so_far(state, report, stop, json=json, verbose=verbose)
        raise
    return _tell(state, report, json=json, verbose=verbose)


def _tell_so_far(
    state: CommandContext, report: VerifyReport, stop: BaseException, *, json: bool, verbose: bool
) -> None:
    """Report what was found before an error or Ctrl-C, whose text then says how to resume."""
    if isinstance(stop, KeyboardInterrupt):
        _tell(state, report, json=json, verbose=verbose, to_the_end=False)
        raise KeyboardInterrupt(so_far(report)) from stop
    if report.judged_to is not None:
        _tell(state, report, json=json, verbose=verbose, to_the_end=False)
        print_note(so_far(report))


def so_far(report: VerifyReport) -> str:
    """Return a sentence on how far an interrupted verify came, and how to resume it."""
    to = report.judged_to
    return (
        "no object was judged yet"
        if to is None
        else f"everything up to {to} was verified; resume with --after {to}"
    )


def _begun(level: VerifyLevel, *, encrypted_only: bool) -> VerifyReport:
    if encrypted_only and level is not VerifyLevel.BYTES:
        raise Usage(f"level {level.value} reads no fragment, and finds no plain one: use level bytes")
    return VerifyReport(level=level)


def _rate(text: str | None) -> int | None:
    bytes_per_second_max = None if text is None else parse_size(text, option="--rate")
    if bytes_per_second_max == 0:
        raise Usage("--rate takes a size above zero")
    return bytes_per_second_max


def _tell(
    state: CommandContext, report: VerifyReport, *, json: bool, verbose: bool, to_the_end: bool = True
) -> int:
    """Report the result to plugins and to the user, and return the exit code."""
    for damage in report.damages:
        state.plugins.emit(DamageFound(damage=damage))
    if json:
        print_json(report.as_json(), indent=2)
    else:
        _show(report, verbose=verbose, to_the_end=to_the_end)
    return exit_code(report)


def _show(report: VerifyReport, *, verbose: bool, to_the_end: bool) -> None:
    show_findings(report)
    print_objects("unreferenced", ((row.key, row.reason) for row in report.unreferenced), verbose=verbose)
    if report.not_compared:
        what = counted(report.not_compared, "object was", "objects were")
        print(f"{what} not compared: the store keeps no CRC-32C")
    show_not_opened(report)
    sound = SOUND[report.level] if report.streams else "no stream was verified"
    sound = sound if to_the_end else "no damage so far"
    print(
        f"{counted(report.streams, 'stream')}, {counted(report.objects, 'object')}, "
        f"{size_text(report.bytes)}: {verdict(report, sound=sound)}"
    )


SOUND = {
    VerifyLevel.MANIFEST: "all there, with the right sizes; no fragment was read",
    VerifyLevel.CHECKSUM: "all there, with the right sizes and with those checksums that the store keeps",
    VerifyLevel.BYTES: "all of them sound",
}


def _seen(report: VerifyReport) -> CommandProgress:
    return CommandProgress(
        what=f"verifying {report.stream or 'the tier'}",
        done=report.reached - report.offsets.start,
        total=len(report.offsets) or None,
        size_bytes=report.bytes,
        note=f", {len(report.damages)} damaged" if report.damages else "",
    )
