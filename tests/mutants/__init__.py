"""Mutants: known defects, planted one at a time, to see whether the simulator and the tests would notice.

A mutant that nobody catches means that a checker or a test is missing. `make mutants` runs all of them,
`make mutants ONLY="late channel"` those whose name contains the words. The defects are in `catalogue`, what is
done with each in `harness`.
"""
