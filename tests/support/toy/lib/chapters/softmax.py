"""Says how much faster the softmax of one call is than that of its steps."""

import pandas as pd

from lib.report import sentences, tidy


def tell(records: pd.DataFrame) -> sentences.Statement:
    """Compare one call with the steps, at the largest width measured."""
    most = {"width": tidy.largest(records, "width")["width"]}
    return sentences.compare(
        records, "total_ms", {**most, "variant": "one_call"}, {**most, "variant": "stepwise"},
        "one call", "the steps", sentences.at("at {width:,} numbers a row", most),
    )  # fmt: skip
