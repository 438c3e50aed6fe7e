"""Transformer models as data: shapes, built-in list, Hugging Face configurations, exact counts."""
