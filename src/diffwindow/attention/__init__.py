"""The layers of a Transformer: window attention and the attentions it is compared with."""
