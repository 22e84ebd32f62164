"""`python -m bertvision` is the command line."""

from bertvision.cli import main

main()
