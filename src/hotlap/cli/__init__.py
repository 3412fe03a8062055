"""The command line: parses, calls a tool, prints what it found. Nothing is decided here."""
