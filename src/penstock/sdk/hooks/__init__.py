"""Hooks that observe messages, and the two that are shipped: Prometheus metrics and OpenTelemetry traces."""
