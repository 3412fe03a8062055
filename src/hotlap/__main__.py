"""``python -m hotlap`` is the ``hotlap`` command."""

from hotlap.cli.main import main

main()
