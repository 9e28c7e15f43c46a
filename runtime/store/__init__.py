"""Cache entries on disk: found by a digest, verified before use, and published by one rename."""
