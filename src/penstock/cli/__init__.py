"""Thin commands for people and scripts: they read arguments, call one room or one client, and print."""
