"""Output of commands: tables and progress in a terminal, and pictures."""
