"""The other layers of a Transformer: embedding, residual blocks and the loss."""
