"""`python -m devcluster`."""

from devcluster.cli import main

main(prog_name="python -m devcluster")
