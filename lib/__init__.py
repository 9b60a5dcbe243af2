"""Transformer training, measured: the model, the measuring, and the written report."""
