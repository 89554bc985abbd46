"""Mutants: known defects, planted one at a time, to see whether the simulator and the tests would notice.

A mutant that nobody catches means that a checker or a test is missing. `make mutants` runs all of them,
`make mutants ONLY="late channel"` those whose name contains the words. From the top: `catalogue` has the defects,
`harness` judges them, `records` knows who caught them last time, `trials` runs seeds and tests in processes that
`zygote` forks, `trial` is what such a process does, and `trees` makes the copies that they work in.
"""
