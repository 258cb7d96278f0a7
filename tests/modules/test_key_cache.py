import torch
from torch.testing import assert_close

from diffwindow.modules.key_cache import KeyCache


def test_gives_all_that_was_appended():
    cache, parts = KeyCache(), [torch.randn(3, n, 4) for n in (2, 1, 1, 5, 1)]
    for part in parts:
        kept = cache.append(part)
    assert_close(kept, torch.cat(parts, dim=1), rtol=0, atol=0)


def test_appending_moves_the_buffer_rarely():
    cache, buffers = KeyCache(), set()
    for _ in range(1000):
        cache.append(torch.randn(1, 1, 2))
        buffers.add(cache.buffer.data_ptr())
    # 1, 2, 4, … 1024 keys.
    assert len(buffers) <= 11


def test_selects_rows_in_any_order_and_number():
    cache = KeyCache()
    first, second = torch.randn(3, 4, 2), torch.randn(5, 1, 2)
    cache.append(first)
    rows = torch.tensor([2, 0, 0, 2, 1])
    cache.select(rows)
    assert_close(cache.append(second), torch.cat([first[rows], second], dim=1), rtol=0, atol=0)


def test_an_empty_cache_can_be_selected_from():
    cache = KeyCache()
    cache.select(torch.tensor([0, 0]))
    assert cache.append(torch.ones(2, 1, 3)).shape == (2, 1, 3)
