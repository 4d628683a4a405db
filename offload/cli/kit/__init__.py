"""The kit of commands: arguments, output and errors, for the commands here and for those of plugins.

Public. A plugin's command uses these modules to look and fail like the built-in ones:

- `arguments`: TIER, STREAM and `--option`, as every command declares them
- `state`: `CommandContext`, which opens tiers and sources from arguments; `run_async`
- `ending`: `Usage`, the error of a wrong argument; what ends a command
- `output`: lines, tables, JSON, sizes, and errors as one line each
- `progress`: a live line with a bar (`bar`, `terminal`)
- `quantities`: durations and sizes as people write them
- `rebuild`: the options and the report of commands that rebuild
"""
