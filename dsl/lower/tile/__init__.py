"""The program of one register tile."""
