import torch
from torch.testing import assert_close

from diffwindow.attention.cache import KeyCache


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
    # 16, 24, 36, … 1384 keys: half as much again each time.
    assert len(buffers) <= 12


def test_selects_rows_in_any_order_and_number():
    cache = KeyCache()
    first, second = torch.randn(3, 4, 2), torch.randn(5, 1, 2)
    cache.append(first)
    rows = torch.tensor([2, 0, 0, 2, 1])
    cache.select(rows)
    assert_close(cache.append(second), torch.cat([first[rows], second], dim=1), rtol=0, atol=0)


def test_selecting_takes_turns_between_two_buffers():
    cache, expected, places = KeyCache(), torch.randn(6, 3, 2), set()
    cache.append(expected)
    for rows in ([5, 4, 3, 2, 1, 0], [0, 0, 1, 2], [3, 1, 0], [2, 2, 2], [1, 0, 2]):
        cache.select(torch.tensor(rows))
        new = torch.randn(len(rows), 1, 2)
        expected = torch.cat([expected[rows], new], dim=1)
        assert_close(cache.append(new), expected, rtol=0, atol=0)
        places.add(cache.buffer.data_ptr())
    assert len(places) == 2


def test_an_empty_cache_can_be_selected_from():
    cache = KeyCache()
    cache.select(torch.tensor([0, 0]))
    assert cache.append(torch.ones(2, 1, 3)).shape == (2, 1, 3)
