"""Which MXNet wheel has code for which GPU: the tables, the decisions over them, and what keeps them honest."""
