"""Rendered scenes with exact depth: rooms, streets and tabletops."""
