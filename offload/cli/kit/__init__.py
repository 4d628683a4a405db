"""The command kit: arguments, output and errors, for the built-in commands and the commands of plugins.

Public. A plugin's command uses these modules to look and to fail like a built-in one:

- `arguments`: TIER, STREAM, `--option` and `--verbose`, as every command declares them
- `state`: `CommandContext`, which opens tiers and sources from arguments; `run_async`
- `ending`: `Usage`, the error of a wrong argument; other ways in which a command ends
- `output`: lines, tables, JSON, sizes, and errors as one line each
- `progress`: a live line with a bar (`bar`, `terminal`)
- `quantities`: durations and sizes as people write them
- `rebuild`: the options and the report of commands that rebuild
"""
