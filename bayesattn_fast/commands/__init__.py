"""One file for each command of the command line; `main(words)` runs it and returns the exit code."""
