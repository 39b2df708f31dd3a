"""The built-in prompt: long answers, no private text."""

from __future__ import annotations

from typing import Final

LONG_PROMPT: Final = (
    "Write a detailed technical guide to how a computer runs a program, for a reader who knows how to code but has "
    "never looked below the language. Begin with how the processor fetches and executes instructions, then explain "
    "registers, caches and memory, virtual memory and page tables, interrupts and system calls, processes and threads, "
    "scheduling, file systems, and how a compiler turns source code into machine code. Give a worked example for each "
    "topic, explain why each mechanism exists and what it costs, and finish with a chapter on how to measure where a "
    "program spends its time. Write complete chapters with headings, and do not stop early.\n\nChapter 1."
)


def input_ids(count: int) -> list[int]:
    """A prompt of token ids for servers without a tokenizer: small ids, which every vocabulary has, none of them special."""
    return [100 + index % 400 for index in range(count)]
