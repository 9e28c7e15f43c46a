def figures(options):
    return []
