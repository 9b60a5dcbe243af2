"""Says how much faster the softmax of one call is than that of its steps."""

import pandas as pd

from lib.report import sentences, tidy


def tell(records: pd.DataFrame) -> sentences.Statement:
    """Compare one call with the steps, at the largest width measured."""
    widest = {"variant": "one_call", "width": tidy.largest(records, "width")["width"]}
    change, where = {"variant": "stepwise"}, "at {width:,} numbers a row"
    return sentences.compare(records, widest, change, "one call", "the steps", where)
