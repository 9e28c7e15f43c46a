"""Entries on disk: found by a digest, verified before use, published by one rename."""
