"""Fuzzing of every reader with damaged files: `python -m fuzz`, or `make fuzz`.

mutate.py damages bytes, targets.py has every reader with valid files to damage, recoveries.py
turns bytes into calls of `recover`, engine.py runs the cases and classifies their results.
"""
