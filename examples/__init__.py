"""Programs to read: each runs as a script, and all run in the tests."""
