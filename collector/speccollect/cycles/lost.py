"""What a recording dropped."""

from __future__ import annotations


class Lost:
    """What was dropped, by kind. Counted, so that a report can say it."""

    __slots__ = ("cycles", "late_accepts", "other_thread", "phases", "requests", "unclosed", "windows")

    def __init__(self) -> None:
        self.cycles = 0
        self.phases = 0
        self.requests = 0
        self.windows = 0
        self.late_accepts = 0
        self.unclosed = 0
        self.other_thread = 0

    def section(self) -> dict[str, int]:
        """Kind -> count."""
        return {name: getattr(self, name) for name in self.__slots__}

    def total(self) -> int:
        """Everything that was dropped."""
        return sum(self.section().values())
