"""Alerts: rules over snapshots, firing alerts, notifications and silences."""
