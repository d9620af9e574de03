"""`python -m penstock`: the `penstock` command, for whoever has an interpreter and not the script."""

from penstock.cli.main import main

main()
