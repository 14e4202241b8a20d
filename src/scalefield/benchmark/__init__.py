"""Evaluation, scores, diagnosis and reports."""
