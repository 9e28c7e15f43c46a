"""Turn a program into C by jinja2 templates, and the bodies of parallel loops into functions."""
