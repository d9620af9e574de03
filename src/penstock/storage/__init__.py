"""Logs and what keeps them: the contract of an engine, producer state, leader epochs, and the engines themselves."""
