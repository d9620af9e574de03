"""`python -m penstock`: the `penstock` command, where the script is not on the PATH."""

from penstock.cli.main import main

main()
