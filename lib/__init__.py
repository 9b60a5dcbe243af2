"""Measure the training of Transformers, keep what was measured, and tell it."""

import signal
import sys

# Python names a command so while it looks for the module of `python -m lib.report`: a kernel keeps its own handler.
# Until a command takes signals, Ctrl-C ends the process: Python's handler raises inside imports, where some abort.
if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
