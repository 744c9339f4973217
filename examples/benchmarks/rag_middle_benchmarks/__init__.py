"""Tasks of published long-context benchmarks, found by their entry points."""
