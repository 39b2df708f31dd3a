"""Errors a user can cause. Everything else is a bug and keeps its traceback."""

from __future__ import annotations


class SpecError(Exception):
    """One clear line for the user: what is wrong, where, and what to do. Exit code 1."""


class TraceError(SpecError):
    """The data is damaged, incomplete, of a newer version, or can't answer the question."""


class UsageError(SpecError):
    """The command line asks for something impossible. Exit code 2."""
