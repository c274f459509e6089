"""`python -m selector`: the command without an installed script."""

from selector.cli import main

main(prog_name="selector")
