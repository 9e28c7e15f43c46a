"""What is measured: a module for each section of a run."""
