"""Measurements, one a file:  python -m minikv.benchmarks NAME

A file whose name does not begin with "_" is a benchmark. It has `main(argv)`, which prints a table.
"""
