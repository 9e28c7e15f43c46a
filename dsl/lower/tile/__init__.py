"""The program of one register tile: its K loop, and the computation of C or D from the sums."""
