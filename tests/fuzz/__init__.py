"""Random pipelines over the public API, judged by models in plain Python. See docs/internals/FUZZ.md."""
