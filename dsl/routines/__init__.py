"""One entry for each kind of routine: its plan, its stages, and how it is explained"""
