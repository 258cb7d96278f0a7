"""Search for outputs: greedy, beam and sampling over any model with `step`."""
