"""What every room may use: errors, the environment, tasks, URLs, texts from outside, the compiled loops."""
