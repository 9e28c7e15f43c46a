"""One entry for each kind of routine: its plan, stages, and explanation."""
