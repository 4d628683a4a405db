"""The command `offload users add`: say who may log in to `offload serve`."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from offload.cli.kit.ending import Usage
from offload.cli.kit.output import print_note
from offload.cli.kit.state import CommandContext
from offload.ground.errors import Misuse
from offload.ground.outside import Unreadable, read_outside
from offload_rabbitmq.server.users import PASSWORD_SIZE_BYTES_MAX, write_user

STDIN: Final = "-"
READ_SIZE_BYTES_MAX: Final = PASSWORD_SIZE_BYTES_MAX + len("\r\n")

File = Annotated[
    str, typer.Argument(metavar="FILE", help="The file that `users=FILE` names. It is made if it is absent.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The user.")]
PasswordFile = Annotated[
    str | None,
    typer.Option(
        "--password-file",
        metavar="PATH",
        help="Read the password from this file, or from stdin if it is `-`. Default: ask at the terminal.",
    ),
]

app = typer.Typer(help="Say who may log in to `offload serve`.", no_args_is_help=True)


@app.callback()
def users() -> None:
    """Say who may log in to `offload serve`."""


@app.command()
def add(context: typer.Context, file: File, name: Name, password_file: PasswordFile = None) -> int:
    """Add a user to FILE, or give one another password. Only hashes of passwords are written."""
    state: CommandContext = context.obj
    is_new = write_user(file, name, _password(password_file), state.session.env)
    print_note(f"{name}: {'added to' if is_new else 'has another password in'} {file}")
    return 0


def _password(path: str | None) -> bytes:
    """Return the password, without the line break behind it."""
    if path is None:
        if not sys.stdin.isatty():
            raise Usage(
                "there is no terminal to ask for the password: use --password-file PATH, or - for stdin"
            )
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True)).encode()
    try:
        if path == STDIN:
            raw = sys.stdin.buffer.read(READ_SIZE_BYTES_MAX + 1)
        else:
            raw = read_outside(path, size_bytes_max=READ_SIZE_BYTES_MAX)
    except (OSError, Unreadable) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise Misuse(f"the file of the password {path!r} cannot be read: {why}") from error
    return raw.removesuffix(b"\n").removesuffix(b"\r")
