"""From program to C, by jinja2."""
