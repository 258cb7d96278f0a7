"""LayerCache: our stacked keys in a cache of transformers, as `generate` passes it."""

from torch import Tensor
from transformers import Cache

from diffwindow.attention.key_cache import KeyCache


class LayerCache(KeyCache):
    """One layer of a transformers cache, which keeps our stacked keys as the keys of a single head."""

    def __init__(self, cache: Cache, layer: int) -> None:
        super().__init__()
        self.cache = cache
        self.layer = layer
        self.length = int(cache.get_seq_length(layer))

    def append(self, keys: Tensor) -> Tensor:
        """Add the keys of new tokens and return all that are kept."""
        heads = keys[:, None]
        # there are no values apart from the keys: a cache takes a width of zero
        kept: Tensor = self.cache.update(heads, heads[..., :0], self.layer)[0]
        self.length += keys.shape[1]
        # a static cache has room for more
        return kept[:, 0, : self.length]


def layer_caches(cache: Cache | None, num_layers: int) -> list[LayerCache]:
    """Return the cache of each layer; none without a cache."""
    return [] if cache is None else [LayerCache(cache, layer) for layer in range(num_layers)]
