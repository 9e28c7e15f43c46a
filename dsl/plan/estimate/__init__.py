"""Estimate the time of a whole kernel: its work, and the transfers of its operands from
the caches.
"""
