"""Every op beside its peers and beside the limits of the machine, measured in one run: `bayesattn bench`.

case.py says what is measured, runner.py how, cases/OP.py at which sizes and against whom.
"""
