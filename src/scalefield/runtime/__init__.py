"""Devices, worker processes, signals and provenance."""
