"""Program to C by jinja2, and the bodies of parallel loops as functions."""
