"""How things are spelled in C: jinja2 templates, rendered by ``tilewright.emit.render``."""
