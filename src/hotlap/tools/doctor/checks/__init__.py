"""Checks that judge facts: one file for each group, each check a function of the machine."""
