"""The language of programs: tile operations, outer loops (the nest), data flow, checks, counts."""
