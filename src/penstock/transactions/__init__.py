"""Transactions: who is writing what in one piece, and whether it counts."""
