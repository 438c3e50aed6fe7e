"""`python -m viz`: the command `tilewalk`, where no script of that name is installed."""

from viz.cli import main

main()
