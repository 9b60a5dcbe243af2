"""Renders the report: `python -m lib.report`."""

import sys

from lib.report.document import page

if __name__ == "__main__":
    sys.exit(page.main())
