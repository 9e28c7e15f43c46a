"""tilewright in other libraries, beside what those do themselves."""
