"""Which attention each role and layer of a model gets, as text."""
