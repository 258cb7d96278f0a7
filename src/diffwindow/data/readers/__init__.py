"""Readers: each streams the rows of one kind of corpus and reports what it found to an `Audit`."""
