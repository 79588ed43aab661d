"""Measures the stages of a run on this machine."""
