"""InterCode-SQL (arXiv 2306.14898): answer a question by querying a database whose schema must be discovered."""
