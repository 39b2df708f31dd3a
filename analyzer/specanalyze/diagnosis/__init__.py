"""Findings: rules over the answers, what each is worth, and the knob that wins it."""
