"""Names the machine whose records git keeps and the tests read."""

MACHINE = "xeon-2c"
