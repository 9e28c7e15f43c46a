"""Specs and schedules: element types, sizes, operands, post-ops, schedules, and C signatures."""
