"""The libraries that tilewright is measured against."""
