"""Transactions: producer ids, transactional ids and their coordinator."""
