"""Measurements of TaskHive, each against the targets it names; run one with `python -m`."""
