"""The case that the records of two variants differ from in variant and length."""

CASE = {"variant": "naive", "seq_len": 64, "compiled": False}
