"""Plans of row programs: passes over a row, cut at its reductions."""
