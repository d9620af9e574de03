"""Cleaning jobs: their schedule and runs, and what each of them removes."""
