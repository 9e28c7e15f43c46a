"""Charts of the pages: each is drawn from records of the benchmarks, never by hand."""
