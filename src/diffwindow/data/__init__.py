"""Corpus readers, tokenizer, memory-mapped store, token batches and synthetic corpora."""

from diffwindow.extras import require

require("tokenizers")
