"""KV memory as a budget: the pure core that the operator, the worker, the planner and the tests all call.

Nothing in this package reads a clock, an environment variable, a file or a socket; a decision is a function of its
arguments (``cli`` and ``shapes.files`` are the exceptions, the shell around them; ``shapes.table`` reads the package's
own data once).
"""
