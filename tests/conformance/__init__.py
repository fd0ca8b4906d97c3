"""A framework's own tests, run as they are and once more through our durable runner: `python -m conformance FRAMEWORK`.

What an integration brings, in `integrations/<framework>/`:

- `conformance.toml`: where its tests come from, how they are run, what was seen last; see `suite`.
- `conformance.py`: how the framework's entry points are led through the runner, for a whole test run; see `ledger`.
"""
