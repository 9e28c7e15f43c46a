"""The program of one register tile: its K loop, and its way to C or D."""
