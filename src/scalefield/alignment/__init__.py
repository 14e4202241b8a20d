"""Shared parts of the classic alignment methods."""
