"""How fast a kernel is, and the peak of the core it runs on."""
