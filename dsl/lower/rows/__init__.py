"""Row programs as tile programs: one call for each row, pass after pass."""
