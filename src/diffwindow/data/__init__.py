"""Corpus readers, tokenizer, memory-mapped store, token batches and synthetic corpora."""
