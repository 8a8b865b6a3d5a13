"""Which MXNet wheel has code for which GPU: the tables, the decisions from them, and the checks of the tables."""
