"""The other layers of a Transformer: embedding, positions, residual blocks and the loss."""
