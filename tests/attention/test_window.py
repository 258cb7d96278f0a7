"""WindowAttention: the call of MultiheadAttention, masks, invariances, places it is put in."""

import cmath
import copy
import math

import pytest
import torch
from torch import nn, tensor
from torch.testing import assert_close

from diffwindow import Classifier, ClassifierConfig, WindowAttention, functional
from diffwindow.attention.base import watch
from diffwindow.attention.kinds import build_attention
from diffwindow.attention.visibility import Visibility
from diffwindow.notation import parse_attention
from diffwindow.view.capture import capture

WINDOWS = ["additive", "multiplicative"]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def padding(lengths, size, *, left=False):
    """A key_padding_mask, True where there is no key."""
    mask = torch.arange(size) >= tensor(lengths)[:, None]
    return mask.flip(-1) if left else mask


@pytest.mark.parametrize("boundary_dim", [4, 3])
@pytest.mark.parametrize("window", WINDOWS)
def test_output_is_that_of_the_equations(window, boundary_dim):
    """Project, window and weigh by hand, a head at a time."""
    attention = WindowAttention(
        8, 2, window=window, segment_size=2, expectation="exact", boundary_dim=boundary_dim
    ).double()
    x, y = torch.randn(3, 5, 8).double(), torch.randn(3, 7, 8).double()
    output, weights = attention(x, y, y, average_attn_weights=False)
    scores = [4, boundary_dim, boundary_dim, *([4] if window == "additive" else [])]
    blocks = attention.in_proj.weight.split([2 * dim for dim in (*scores, *scores, 4)])
    # a head's rows of a block
    rows = [block.unflatten(0, (2, -1)) for block in blocks]
    for head in range(2):
        q, q_left, q_right, *q_local = (x @ w[head].T for w in rows[: len(scores)])
        k, k_left, k_right, *k_local = (y @ w[head].T for w in rows[len(scores) : -1])
        m = functional.soft_window(
            (q_left @ k_left.mT / boundary_dim**0.5).softmax(-1),
            (q_right @ k_right.mT / boundary_dim**0.5).softmax(-1),
            segment_size=2,
            expectation="exact",
        )
        score = q @ k.mT / 2
        if window == "additive":
            expected = (score + q_local[0] @ k_local[0].mT / 2 * m).softmax(-1)
        else:
            expected = score.softmax(-1) * m
        assert_close(weights[:, head], expected)
    heads = torch.cat([weights[:, h] @ (y @ rows[-1][h].T) for h in range(2)], -1)
    assert_close(output, heads @ attention.out_proj.weight.T)


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("window", WINDOWS)
def test_relative_positions_are_added_to_the_scores(window, gate):
    """The same weights as a bias that is worked out one pair at a time."""
    options = {"window": window, "gate": gate and window == "multiplicative"}
    attention = WindowAttention(8, 2, relative_size=2, **options).double()
    plain = WindowAttention(8, 2, **options).double()
    for name, parameter in attention.named_parameters():
        nn.init.normal_(parameter, std=0.5)
        if name != "key_table":
            plain.get_parameter(name).data.copy_(parameter)
    x = torch.randn(1, 6, 8).double()
    queries = (x[0] @ attention.in_proj.weight[:8].T + attention.in_proj.bias[:8]).view(6, 2, 4)
    bias = torch.zeros(2, 6, 6).double()
    for h in range(2):
        for i in range(6):
            for j in range(6):
                bias[h, i, j] = queries[i, h] @ attention.key_table[max(-2, min(2, j - i)) + 2] / 2
    for need_weights in (True, False):
        output, _ = attention(x, x, x, need_weights=need_weights)
        assert_close(output, plain(x, x, x, need_weights=need_weights, attn_mask=bias)[0])
    last, _ = attention(x[:, 4:], x, x)
    assert_close(last, output[:, 4:])
    output.sum().backward()
    assert attention.key_table.grad.abs().sum() > 0


def turned(x):
    """Rotate [b n e] with complex numbers, a pair at a time."""
    half = x.shape[-1] // 2
    result = x.clone()
    for place in range(x.shape[1]):
        for i in range(half):
            number = torch.complex(x[:, place, i], x[:, place, i + half])
            number = number * cmath.exp(1j * place / 10000 ** (2 * i / x.shape[-1]))
            result[:, place, i], result[:, place, i + half] = number.real, number.imag
    return result


@pytest.mark.parametrize("rotary", ["scores", "pointers", "both"])
@pytest.mark.parametrize("window", WINDOWS)
def test_rotary_positions_turn_queries_and_keys_before_anything_else(window, rotary):
    attention = WindowAttention(8, 2, window=window, rotary=rotary).double()
    x = torch.randn(2, 6, 8).double()
    maps = attention.inspect(x, x)
    pairs = 4 if window == "additive" else 3
    rows = [block.unflatten(0, (2, -1)) for block in attention.in_proj.weight.split(8)]
    for head in range(2):
        stacks = [x @ block[head].T for block in rows[: 2 * pairs]]
        for index in range(2 * pairs):
            kind = "pointers" if index % pairs in (1, 2) else "scores"
            if rotary in (kind, "both"):
                stacks[index] = turned(stacks[index])
        scores = [q @ k.mT / 2 for q, k in zip(stacks[:pairs], stacks[pairs:], strict=True)]
        assert_close(maps.window.phi_left[:, head], scores[1].softmax(-1))
        assert_close(maps.window.phi_right[:, head], scores[2].softmax(-1))
        window_of_head = maps.window.values[:, head]
        if window == "additive":
            expected = (scores[0] + scores[3] * window_of_head).softmax(-1)
        else:
            expected = scores[0].softmax(-1) * window_of_head
        assert_close(maps.weights[:, head], expected)


def test_rotary_queries_are_the_last_of_the_keys():
    attention, x = WindowAttention(8, 2, rotary="both"), torch.randn(2, 6, 8)
    whole, _ = attention(x, x, x)
    last, _ = attention(x[:, 4:], x, x)
    assert_close(last, whole[:, 4:])
    copied, _ = attention(x.clone(), x, x)
    assert_close(copied, whole)
    with pytest.raises(ValueError, match="6 queries for 2 keys"):
        attention(x, x[:, :2], x[:, :2])


@pytest.mark.parametrize("window", WINDOWS)
def test_rotary_positions_run_in_the_kernels(window):
    attention, x = WindowAttention(16, 2, window=window, rotary="scores"), torch.randn(2, 9, 16)
    fused, _ = attention(x, x, x, need_weights=False)
    attention.impl = "reference"
    assert_close(fused, attention(x, x, x, need_weights=False)[0])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"embed_dim": 6, "rotary": "scores"}, "3 wide"),
        ({"embed_dim": 8, "boundary_dim": 3, "rotary": "pointers"}, "3 wide"),
    ],
)
def test_rotary_positions_need_pairs(options, match):
    with pytest.raises(ValueError, match=match):
        WindowAttention(num_heads=2, **options)


def gated(gate):
    attention = WindowAttention(8, 2, window="multiplicative", gate=True)
    with torch.no_grad():
        attention.gate.copy_(tensor(gate))
    return attention


def test_a_gate_moves_each_head_between_plain_attention_and_its_window():
    x, hidden = torch.randn(3, 5, 8), padding([5, 3, 4], 5, left=True)
    attention = gated([0.25, 1.0])
    maps = attention.inspect(x, x, key_padding_mask=hidden, is_causal=True)
    opened = gated([1.0, 1.0])
    opened.load_state_dict(attention.state_dict() | {"gate": torch.ones(2)})
    windowed = opened.inspect(x, x, key_padding_mask=hidden, is_causal=True)
    assert_close(maps.window.values, windowed.window.values)
    assert_close(maps.weights[:, 1], windowed.weights[:, 1])
    # 1 + g(M - 1) at g = 1/4, where the plain weights are those of the window divided by M
    plain = windowed.weights[:, 0] / windowed.window.values[:, 0].clamp(min=1e-30)
    assert_close(maps.weights[:, 0], plain * (0.75 + 0.25 * windowed.window.values[:, 0]))
    call = {"key_padding_mask": hidden, "is_causal": True, "attn_mask": torch.randn(5, 5)}
    assert_close(
        attention(x, x, x, need_weights=False, **call)[0], attention(x, x, x, need_weights=True, **call)[0]
    )


def test_a_closed_gate_is_plain_attention_and_can_open():
    attention, x = gated([0.0, 0.0]), torch.randn(3, 5, 8)
    q, k, v = (attention.in_proj(x)[..., rows] for rows in attention.plain_rows())
    heads = [y.unflatten(-1, (2, 4)).transpose(1, 2) for y in (q, k, v)]
    plain = nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
    with torch.no_grad():
        assert torch.equal(attention(x, x, x, need_weights=False)[0], attention.out_proj(plain))
    output, _ = attention(x, x, x, need_weights=False)
    assert_close(output, attention.out_proj(plain))
    output.sum().backward()
    assert attention.gate.grad.abs().min() > 0
    attention.reset_parameters()
    assert torch.equal(attention.gate, torch.zeros(2))


@pytest.mark.parametrize("window", WINDOWS)
def test_need_weights_changes_nothing_else(window):
    attention, x = WindowAttention(8, 2, window=window), torch.randn(3, 5, 8)
    with_weights, weights = attention(x, x, x)
    without, none = attention(x, x, x, need_weights=False)
    assert none is None
    assert weights.shape == (3, 5, 5)
    assert_close(with_weights, without)


def test_weights_are_those_used():
    attention, x = WindowAttention(8, 2, window="multiplicative"), torch.randn(3, 5, 8)
    maps = attention.inspect(x, x)
    _, weights = attention(x, x, x, average_attn_weights=False)
    assert torch.equal(weights, maps.weights)
    assert not torch.allclose(weights.sum(-1), torch.ones(3, 2, 5))
    assert_close(maps.window.values, functional.soft_window(maps.window.phi_left, maps.window.phi_right))


@pytest.mark.parametrize("batch_first", [True, False])
def test_layouts_agree(batch_first):
    attention = WindowAttention(8, 2, batch_first=batch_first)
    twin = WindowAttention(8, 2)
    twin.load_state_dict(attention.state_dict())
    x, y = torch.randn(3, 5, 8), torch.randn(3, 7, 8)
    given = (x, y, y) if batch_first else tuple(t.transpose(0, 1) for t in (x, y, y))
    output, weights = attention(*given)
    expected, expected_weights = twin(x, y, y)
    assert_close(output if batch_first else output.transpose(0, 1), expected)
    assert_close(weights, expected_weights)
    single, single_weights = attention(x[1], y[1], y[1], key_padding_mask=torch.zeros(7, dtype=torch.bool))
    assert_close(single, expected[1])
    assert_close(single_weights, expected_weights[1])


def test_values_may_differ_from_keys():
    attention = WindowAttention(8, 2)
    x, y, z = torch.randn(3, 5, 8), torch.randn(3, 7, 8), torch.randn(3, 7, 8)
    output, weights = attention(x, y, z, average_attn_weights=False)
    _, same = attention(x, y, y, average_attn_weights=False)
    assert_close(weights, same)
    assert not torch.allclose(output, attention(x, y, y)[0])


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("segment_size", [1, 3])
@pytest.mark.parametrize("left", [False, True])
def test_padding_and_the_rest_of_the_batch_change_nothing(window, segment_size, left):
    attention = WindowAttention(8, 2, window=window, segment_size=segment_size)
    lengths = [4, 7, 5]
    sentences = [torch.randn(n, 8) for n in lengths]
    batch = torch.full((3, 7, 8), 9.0)
    for row, sentence in zip(batch, sentences, strict=True):
        (row[-len(sentence) :] if left else row[: len(sentence)]).copy_(sentence)
    output, _ = attention(batch, batch, batch, key_padding_mask=padding(lengths, 7, left=left))
    for row, sentence in zip(output, sentences, strict=True):
        real = row[-len(sentence) :] if left else row[: len(sentence)]
        assert_close(real, attention(sentence, sentence, sentence)[0])


@pytest.mark.parametrize("window", WINDOWS)
def test_causal_three_ways(window):
    attention, x = WindowAttention(8, 2, window=window), torch.randn(3, 5, 8)
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    flag, _ = attention(x, x, x, is_causal=True)
    boolean, _ = attention(x, x, x, attn_mask=hidden)
    floating, _ = attention(
        x, x, x, attn_mask=nn.Transformer.generate_square_subsequent_mask(5), is_causal=True
    )
    assert_close(flag, boolean)
    assert_close(flag, floating)
    x_later = x.clone()
    x_later[:, 3:] += 1
    assert torch.equal(attention(x_later, x_later, x_later, is_causal=True)[0][:, :3], flag[:, :3])


def test_masks_a_head_and_padding_both_apply():
    attention, x = WindowAttention(8, 2), torch.randn(3, 5, 8)
    mask, padded = torch.rand(6, 5, 5) > 0.7, padding([3, 5, 4], 5)
    _, weights = attention(x, x, x, attn_mask=mask, key_padding_mask=padded, average_attn_weights=False)
    hidden = mask.view(3, 2, 5, 5) | padded[:, None, None]
    assert torch.equal(weights == 0, hidden)


def test_a_sequence_of_padding_gives_the_output_bias():
    attention, x = WindowAttention(8, 2), torch.randn(2, 5, 8, requires_grad=True)
    nn.init.ones_(attention.out_proj.bias)
    output, weights = attention(x, x, x, key_padding_mask=padding([0, 5], 5))
    assert (output[0] == 1).all()
    assert (weights[0] == 0).all()
    output.square().sum().backward()
    assert (x.grad[0] == 0).all()
    assert (x.grad[1] != 0).any()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("window", WINDOWS)
def test_dropout_acts_in_training_alone(window):
    attention, x = WindowAttention(8, 2, window=window, dropout=0.5), torch.randn(2, 5, 8)
    trained = attention(x, x, x, average_attn_weights=False)[1]
    assert (trained == 0).any()
    attention.eval()
    assert (attention(x, x, x, average_attn_weights=False)[1] != 0).all()


@pytest.mark.parametrize("window", WINDOWS)
def test_maps_are_without_dropout(window):
    attention, x = WindowAttention(8, 2, window=window, dropout=0.5), torch.randn(2, 5, 8)
    assert_close(attention.inspect(x, x).weights, attention.eval().inspect(x, x).weights)


def test_dropout_and_bias_stand_where_torch_has_them():
    attention = WindowAttention(8, 2, 0.25, False, device="cpu", dtype=torch.float64)
    assert attention.dropout == 0.25
    assert attention.in_proj.bias is None
    assert attention.in_proj.weight.dtype == torch.float64


def test_no_keys_at_all_give_the_output_bias():
    attention, x = WindowAttention(8, 2, segment_size=5), torch.randn(2, 3, 8)
    nothing = torch.empty(2, 0, 8)
    output, weights = attention(x, nothing, nothing, key_padding_mask=torch.empty(2, 0, dtype=torch.bool))
    assert_close(output, attention.out_proj.bias.expand_as(output))
    assert weights.shape == (2, 3, 0)


@pytest.mark.parametrize("window", WINDOWS)
def test_autocast_stays_near_fp32(window):
    attention, x = WindowAttention(32, 4, window=window), torch.randn(2, 9, 32)
    exact, _ = attention(x, x, x)
    with torch.autocast("cpu", torch.bfloat16):
        rounded, weights = attention(x, x, x)
    assert rounded.dtype == torch.bfloat16
    assert weights.dtype == torch.float32
    # bf16 keeps 8 bits: a few roundings of values around one.
    assert (rounded.float() - exact).abs().max() < 0.03


def test_state_dict_keys_are_stable():
    shapes = {name: list(x.shape) for name, x in WindowAttention(8, 2).state_dict().items()}
    assert shapes == {
        "in_proj.weight": [72, 8],
        "in_proj.bias": [72],
        "out_proj.weight": [8, 8],
        "out_proj.bias": [8],
    }
    assert WindowAttention(8, 2, window="multiplicative").in_proj.weight.shape == (56, 8)
    assert list(WindowAttention(8, 2, bias=False).state_dict()) == ["in_proj.weight", "out_proj.weight"]


@pytest.mark.parametrize(("window", "blocks"), [("additive", 9), ("multiplicative", 7)])
def test_initialisation_is_xavier_over_the_stack(window, blocks):
    attention = WindowAttention(64, 4, window=window)
    bound = (6 / (64 + blocks * 64)) ** 0.5
    assert 0.99 * bound < attention.in_proj.weight.abs().max() <= bound
    assert (attention.in_proj.bias == 0).all()
    assert (attention.out_proj.bias == 0).all()
    maps = attention.inspect(*[torch.randn(2, 9, 64)] * 2)
    assert maps.window.phi_left.max() < 3 / 9, "pointers start near uniform"


def test_initialisation_may_be_block_by_block():
    attention = WindowAttention(64, 4, boundary_dim=4)
    attention.init_projections("separate")
    wide, narrow = (6 / (64 + 64)) ** 0.5, (6 / (64 + 16)) ** 0.5
    largest = [w.abs().max().item() for w in attention.in_proj.weight.split([64, 16, 16, 64] * 2 + [64])]
    for bound, found in zip([wide, narrow, narrow, wide] * 2 + [wide], largest, strict=True):
        assert 0.97 * bound < found <= bound


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("window", WINDOWS)
def test_float_masks_are_added_to_the_scores(window, need_weights):
    """As `attn_bias` of the operations, and as in torch.nn.MultiheadAttention; -inf hides as True does."""
    attention, x = WindowAttention(8, 2, window=window, segment_size=2), torch.randn(3, 5, 8)
    bias = torch.randn(6, 5, 5)
    queries, keys = attention.project_self(x)
    expected = attention.attend(queries, keys, Visibility(attn_bias=bias.view(3, 2, 5, 5)))
    assert_close(attention(x, x, x, attn_mask=bias, need_weights=need_weights)[0], expected)
    assert not torch.allclose(expected, attention(x, x, x)[0])
    pad = padding([5, 2, 4], 5, left=True)
    as_float = torch.zeros(3, 5).masked_fill(pad, float("-inf"))
    hidden = attention(x, x, x, key_padding_mask=pad, attn_mask=bias, need_weights=need_weights)[0]
    assert_close(
        attention(x, x, x, key_padding_mask=as_float, attn_mask=bias, need_weights=need_weights)[0], hidden
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("window", WINDOWS)
def test_a_float_mask_that_leaves_no_weight_hides_keys_from_the_pointers_too(window, need_weights, dtype):
    """Whatever number a mask hides with, outputs do not know keys that come later, nor padding."""
    attention, x = WindowAttention(8, 2, window=window, segment_size=2).to(dtype), torch.randn(3, 6, 8)
    x, pad = x.to(dtype), padding([6, 2, 4], 6, left=True)
    later = torch.ones(6, 6, dtype=torch.bool).triu(1)
    expected = attention(x, x, x, key_padding_mask=pad, attn_mask=later, need_weights=need_weights)[0]
    for number in (-math.inf, -1e4, -1e9, torch.finfo(dtype).min):
        floats = [torch.zeros(mask.shape, dtype=dtype).masked_fill(mask, number) for mask in (pad, later)]
        masks = {"key_padding_mask": floats[0], "attn_mask": floats[1]}
        found = attention(x, x, x, **masks, need_weights=need_weights)[0]
        assert_close(found, expected)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("gate", [False, True])
def test_nan_in_padding_stays_there(need_weights, left, gate):
    """Real rows are as before, in self-attention; across, so are the gradients of all parameters."""
    attention = gated([0.25, 1.0]) if gate else WindowAttention(8, 2, segment_size=2)
    x = torch.randn(3, 7, 8)
    pad = padding([7, 4, 5], 7, left=left)
    dirty = x.masked_fill(pad[..., None], float("nan"))
    clean = x.masked_fill(pad[..., None], 0.0)
    mask = {"key_padding_mask": pad, "need_weights": need_weights}
    expected, found = (attention(y, y, y, **mask)[0] for y in (clean, dirty))
    assert torch.equal(found[~pad], expected[~pad])
    maps, clean_maps = (attention.inspect(y, y, key_padding_mask=pad) for y in (dirty, clean))
    pairs = zip((maps.weights, *maps.window[:3]), (clean_maps.weights, *clean_maps.window[:3]), strict=True)
    for ours, true in pairs:
        assert torch.equal(ours.transpose(1, 2)[~pad], true.transpose(1, 2)[~pad])
    query = torch.randn(3, 4, 8)
    gradients = []
    for memory in (clean, dirty):
        attention.zero_grad()
        attention(query, memory, memory, **mask)[0].square().sum().backward()
        gradients.append([parameter.grad for parameter in attention.parameters()])
    for ours, true in zip(*reversed(gradients), strict=True):
        assert torch.equal(ours, true)


@pytest.mark.parametrize("need_weights", [False, True])
def test_the_meta_device_gives_shapes(need_weights):
    attention = WindowAttention(8, 2, segment_size=2, device="meta")
    x, y = torch.empty(3, 5, 8, device="meta"), torch.empty(3, 7, 8, device="meta")
    pad = torch.empty(3, 7, dtype=torch.bool, device="meta")
    output, weights = attention(x, y, y, key_padding_mask=pad, need_weights=need_weights)
    assert output.shape == (3, 5, 8)
    assert (weights is not None) == need_weights


def test_hooks_of_the_projection_are_called_across():
    """As those that pruning and offloading set."""
    attention, x, y = WindowAttention(8, 2), torch.randn(3, 5, 8), torch.randn(3, 7, 8)
    expected, _ = attention(2 * x, 2 * y, 2 * y)
    attention.in_proj.register_forward_pre_hook(lambda _, inputs: (2 * inputs[0],))
    assert_close(attention(x, y, y)[0], expected)


@pytest.mark.filterwarnings("ignore")
def test_quantized_across():
    attention, x, y = WindowAttention(8, 2), torch.randn(3, 5, 8), torch.randn(3, 7, 8)
    narrow = torch.ao.quantization.quantize_dynamic(attention, {nn.Linear})
    assert_close(narrow(x, y, y + 1)[0], attention(x, y, y + 1)[0], rtol=0, atol=0.1)


def test_a_layer_in_the_place_of_the_projection_is_called():
    """As an adapter is: its own `weight` is not all that it computes."""

    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    attention, x, y = WindowAttention(8, 2), torch.randn(3, 5, 8), torch.randn(3, 7, 8)
    twin = copy.deepcopy(attention)
    twin.in_proj.weight.data *= 2
    doubled = Doubled(8, 72)
    doubled.load_state_dict(attention.in_proj.state_dict())
    attention.in_proj = doubled
    assert_close(attention(x, y, y)[0], twin(x, y, y)[0])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.usefixtures("unchecked")
def test_nested_tensors_are_refused(layout):
    x = torch.nested.nested_tensor([torch.randn(5, 8), torch.randn(3, 8)], layout=layout)
    with pytest.raises(TypeError, match="query is a nested tensor; pass a padded one"):
        WindowAttention(8, 2)(x, x, x)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("swap_late", [False, True])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_in_torchs_encoder(window, swap_late, batch_first):
    """The fused path and nested tensors of eval mode are not taken: eval equals train."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first)
    if not swap_late:
        layer.self_attn = WindowAttention(8, 2, window=window, batch_first=batch_first)
    encoder = nn.TransformerEncoder(layer, 2)
    if swap_late:
        for own in encoder.layers:
            own.self_attn = WindowAttention(8, 2, window=window, batch_first=batch_first)
    x = torch.randn(3, 5, 8) if batch_first else torch.randn(5, 3, 8)
    mask = padding([5, 3, 4], 5)
    trained = encoder(x, src_key_padding_mask=mask)
    encoder.eval()
    assert_close(encoder(x, src_key_padding_mask=mask), trained)
    with torch.inference_mode():
        assert_close(encoder(x, src_key_padding_mask=mask), trained)
        assert_close(encoder.layers[0](x), copy.deepcopy(encoder.layers[0]).train()(x))
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    assert encoder(x, mask=causal, is_causal=True).isfinite().all()


@pytest.mark.parametrize("window", WINDOWS)
def test_in_torchs_decoder(window):
    layer = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    layer.self_attn = WindowAttention(8, 2, window=window)
    layer.multihead_attn = WindowAttention(8, 2, window=window, segment_size=2)
    x, memory = torch.randn(3, 5, 8), torch.randn(3, 7, 8)
    call = {
        "tgt_mask": nn.Transformer.generate_square_subsequent_mask(5),
        "tgt_is_causal": True,
        "memory_key_padding_mask": padding([7, 3, 4], 7),
    }
    trained = layer(x, memory, **call)
    later = x.clone()
    later[:, 3:] += 1
    assert_close(layer(later, memory, **call)[:, :3], trained[:, :3])
    assert_close(layer.eval()(x, memory, **call), trained)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"embed_dim": 9}, ValueError, "embed_dim=9 is not divisible by num_heads=2"),
        ({"num_heads": 0}, ValueError, "num_heads=0 is not positive"),
        ({"embed_dim": -8}, ValueError, "embed_dim=-8 is not positive"),
        ({"window": "aditive"}, ValueError, "did you mean 'additive'?"),
        ({"expectation": "papper"}, ValueError, "did you mean 'paper'?"),
        ({"segment_size": 0}, ValueError, "segment_size=0 is below 1"),
        ({"boundary_dim": 0}, ValueError, "boundary_dim=0 is not positive"),
        ({"boundary_dim": 5}, ValueError, "boundary_dim=5 is above the width of a head, 4"),
        ({"boundary_dim": 2.5}, TypeError, "boundary_dim=2.5 is not an integer"),
        ({"gate": True}, ValueError, "gate=True is for window=\"multiplicative\", not 'additive'"),
        ({"normalize": True}, ValueError, "normalize=True is for a multiplicative window"),
        ({"sinks": 4}, ValueError, "sinks=4 is for a multiplicative window"),
        ({"window": "multiplicative", "sinks": -1}, ValueError, "sinks=-1 is negative"),
        ({"window": "multiplicative", "sinks": 1.5}, TypeError, "sinks=1.5 is not an integer"),
        ({"window": "multiplicative", "sinks": True}, TypeError, "sinks=True is not an integer"),
        ({"window": "multiplicative", "sinks": 2**31}, ValueError, "the most that kernels count"),
        ({"window_tolerance": 1}, ValueError, "window_tolerance=1 is not in 0 <= tolerance < 1"),
        ({"window_tolerance": "1e-3"}, TypeError, "window_tolerance='1e-3' is not a number"),
        ({"window_tolerance": None}, TypeError, "window_tolerance=None is not a number"),
        ({"normalize": "no"}, TypeError, "normalize='no' is not a bool; pass True or False"),
        ({"window": "multiplicative", "gate": "no"}, TypeError, "gate='no' is not a bool"),
        ({"bias": "no"}, TypeError, "bias='no' is not a bool"),
        ({"batch_first": "yes"}, TypeError, "batch_first='yes' is not a bool"),
        ({"num_heads": True}, TypeError, "num_heads=True is not an integer"),
        ({"dropout": True}, TypeError, "dropout=True is not a number; pass an int or a float"),
        ({"dtype": torch.complex64}, TypeError, "dtype is torch.complex64; pass torch.float32"),
        ({"relative_size": 0}, ValueError, "relative_size=0 is not positive"),
        ({"relative_size": 2.5}, TypeError, "relative_size=2.5 is not an integer"),
        ({"rotary": "score"}, ValueError, "rotary='score' is not one of 'scores', 'pointers', 'both'"),
        ({"rotary": "scores", "relative_size": 3}, ValueError, "relative positions are computed from"),
        ({"segmentsize": 3}, TypeError, "there is no argument 'segmentsize'; did you mean 'segment_size'?"),
        ({"windw": "additive"}, TypeError, "there is no argument 'windw'; did you mean 'window'?"),
        ({"attn_mask": None}, TypeError, "there is no argument 'attn_mask'"),
        (
            {"rotary": "both", "boundary_dim": 3},
            ValueError,
            "boundaries are 3 wide; rotary positions need pairs",
        ),
        ({"dropout": -0.1}, ValueError, "dropout=-0.1 is not a probability"),
        ({"impl": "gpu"}, ValueError, "impl='gpu' is not one of"),
        ({"device": "gpu"}, ValueError, "device='gpu' is not a device of torch; pass one, as 'cpu'"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_settings_are_named(arguments, error, message):
    with pytest.raises(error) as caught:
        WindowAttention(**{"embed_dim": 8, "num_heads": 2} | arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"key_padding_mask": torch.zeros(3, 5).long()}, TypeError, "key_padding_mask is torch.int64"),
        ({"attn_mask": torch.zeros(5, 5).int()}, TypeError, "attn_mask is torch.int32"),
        ({"attn_mask": torch.zeros(4, 5)}, ValueError, "attn_mask has shape [4, 5], not [5, 5] or [6, 5, 5]"),
        ({"key_padding_mask": torch.zeros(5, 3).bool()}, ValueError, "has shape [5, 3], not [3, 5]"),
        (
            {"query": torch.zeros(3, 5, 6)},
            ValueError,
            "query has shape [3, 5, 6], not [batch, length, embed_dim]",
        ),
        ({"query": torch.zeros(2, 5, 8)}, ValueError, "do not agree in batch and length"),
        ({"value": torch.zeros(3, 4, 8)}, ValueError, "do not agree in batch and length"),
        ({"value": torch.zeros(5, 8)}, ValueError, "value has shape [5, 8]"),
        ({"query": [[0.0] * 8]}, TypeError, "query is of type list; pass a torch.Tensor"),
        ({"key": None}, TypeError, "key is None; pass a torch.Tensor"),
        ({"value": torch.zeros(3, 5, 8).to_sparse()}, TypeError, "pass value.to_dense()"),
        ({"query": torch.zeros(3, 5, 8).double()}, TypeError, "pass query.to(torch.float32)"),
        ({"query": torch.zeros(3, 5, 8, device="meta")}, ValueError, "query is on meta and the weights are"),
        ({"key_padding_mask": [[False] * 5] * 3}, TypeError, "key_padding_mask is of type list"),
        ({"attn_mask": "causal"}, TypeError, "attn_mask is of type str"),
        ({"attn_mask": torch.zeros(5, 5, device="meta")}, ValueError, "attn_mask is on meta and the query"),
        ({"is_causal": "False"}, TypeError, "is_causal='False' is not a bool"),
        ({"need_weights": "no"}, TypeError, "need_weights='no' is not a bool"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_calls_are_named(arguments, error, message):
    x = torch.randn(3, 5, 8)
    with pytest.raises(error) as caught:
        WindowAttention(8, 2)(**{"query": x, "key": x, "value": x} | arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("need_weights", [False, True])
def test_watchers_see_every_call_and_leave_no_trace(need_weights):
    attention, x, calls = WindowAttention(8, 2), torch.randn(1, 3, 8), []
    before = dict(attention.__dict__)
    with (
        watch([attention], lambda *call: calls.append(("outer", *call))),
        watch([attention], lambda *call: calls.append(("inner", *call))),
    ):
        attention(x, x, x, need_weights=need_weights, is_causal=True)
    attention(x, x, x)
    assert [call[:2] for call in calls] == [("outer", attention), ("inner", attention)]
    assert calls[0][-1].is_causal
    assert attention.__dict__ == before


@pytest.mark.parametrize("positions", [{"rotary": "scores"}, {"relative_size": 3}])
def test_positions_are_refused_where_queries_stand_elsewhere(positions):
    attention, x = WindowAttention(8, 2, **positions), torch.randn(2, 6, 8)
    with pytest.raises(ValueError, match=r"6 queries for 4 keys: \w+ positions are for self-attention"):
        attention(x, x[:, :4], x[:, :4])
    with pytest.raises(ValueError, match=r"take 2 queries as the last of 6 keys; pass an attn_mask instead"):
        attention(x[:, -2:], x, x, is_causal=True)


def test_autocast_takes_inputs_of_another_type_than_the_weights():
    attention, x = WindowAttention(8, 2), torch.randn(2, 6, 8, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert attention(x, x, x, need_weights=False)[0].dtype == torch.bfloat16


def test_weights_have_the_type_of_the_query():
    attention, x = WindowAttention(8, 2).bfloat16(), torch.randn(2, 6, 8, dtype=torch.bfloat16)
    assert attention(x, x, x)[1].dtype == torch.bfloat16


def test_backward_hooks_of_the_projection_run_in_cross_attention():
    attention, calls = WindowAttention(8, 2), []
    attention.in_proj.register_full_backward_hook(lambda *_: calls.append(1))
    query, key = (torch.randn(2, length, 8, requires_grad=True) for length in (3, 5))
    attention(query, key, key)[0].sum().backward()
    assert calls


def sharp(**settings):
    """Build an attention with windows narrow enough to be cut."""
    torch.manual_seed(0)
    attention = WindowAttention(8, 2, window="multiplicative", **settings)
    torch.nn.init.normal_(attention.in_proj.weight, std=1.0)
    return attention.double()


@pytest.mark.parametrize("tolerance", [0.0, 0.2])
@pytest.mark.parametrize("gate", [False, True])
def test_the_weights_are_those_of_the_output_and_sum_to_one(tolerance, gate):
    attention = sharp(window_tolerance=tolerance, normalize=True, gate=gate)
    if gate:
        torch.nn.init.constant_(attention.gate, 0.7)
    x = torch.randn(3, 9, 8).double()
    output, weights = attention(x, x, x, average_attn_weights=False)
    alone, nothing = attention(x, x, x, need_weights=False)
    assert nothing is None
    assert_close(output, alone)
    maps = attention.inspect(x, x)
    assert_close(maps.weights, weights)
    assert (maps.window.values == 0).any() == (tolerance > 0)
    assert (weights > 0)[maps.window.values > 0].all()
    if not gate:
        assert not weights[maps.window.values == 0].any()
        assert_close(weights.sum(-1), (maps.window.values > 0).any(-1).double())


def test_a_tolerance_cuts_the_window_and_leaves_the_rest():
    exact, cut = sharp(), sharp(window_tolerance=0.2)
    x = torch.randn(3, 9, 8).double()
    before, after = exact.inspect(x, x), cut.inspect(x, x)
    small = before.window.values < 0.2
    assert small.any()
    assert_close(after.window.values, before.window.values.masked_fill(small, 0.0))
    assert_close(after.weights, before.weights.masked_fill(small, 0.0))


@pytest.mark.parametrize("settings", [{}, {"gate": True}, {"normalize": True, "window_tolerance": 0.2}])
def test_sinks_stay_visible_wherever_padding_puts_them(settings):
    plain, sunk = sharp(**settings), sharp(**settings, sinks=2)
    for module in (plain, sunk):
        if module.gate is not None:
            torch.nn.init.constant_(module.gate, 0.7)
    x = torch.randn(1, 9, 8).double()
    before, after = plain.inspect(x, x), sunk.inspect(x, x)
    assert (after.window.values[..., :2] == 1).all()
    assert torch.equal(after.window.values[..., 2:], before.window.values[..., 2:])
    assert (after.weights[..., :2] > 0).all()
    padded = torch.cat([torch.randn(1, 3, 8).double(), x], 1)
    hidden = torch.arange(12)[None] < 3
    shifted = sunk.inspect(padded, padded, key_padding_mask=hidden)
    assert_close(shifted.weights[:, :, 3:, 3:], after.weights)
    assert_close(shifted.window.values[:, :, 3:, 3:], after.window.values)
    output, _ = sunk(padded, padded, padded, key_padding_mask=hidden, need_weights=False)
    assert_close(output[:, 3:], sunk(x, x, x, need_weights=False)[0])
    causal = sunk.inspect(x, x, is_causal=True).window.values
    assert causal[0, 0, 0, :2].tolist() == [1.0, 0.0]


def test_a_normalised_window_of_bf16_stays_near_fp32():
    attention = sharp(normalize=True, window_tolerance=0.2).float()
    x = torch.randn(3, 9, 8)
    output, _ = attention(x, x, x, need_weights=False)
    half, _ = attention.bfloat16()(x.bfloat16(), x.bfloat16(), x.bfloat16(), need_weights=False)
    assert half.dtype == torch.bfloat16
    assert (half.float() - output).abs().mean() < 0.1 * output.abs().mean()


def test_the_notation_and_the_config_build_it():
    attention = parse_attention("Enc(MW,Norm)").terms[0].attention
    module = build_attention(attention, 8, 2, window_tolerance=0.1)
    assert (module.options.normalize, module.options.window_tolerance) == (True, 0.1)
    assert "normalize=True, sinks=0, window_tolerance=0.1" in repr(module)
    # a tolerance is for windows: plain attention has none
    build_attention(parse_attention("Enc(Rel)").terms[0].attention, 8, 2, window_tolerance=0.1)


def test_a_trace_shows_what_the_model_computes():
    config = ClassifierConfig(
        vocab_size=9, embed_dim=8, num_heads=2, ffn_dim=8, num_layers=1, num_classes=2,
        attention="Enc(MW,Norm,Sink=2)", window_tolerance=0.9,
    )  # fmt: skip
    model = Classifier(config).eval()
    torch.nn.init.normal_(model.encoder.layers[0].self_attention.attention.in_proj.weight, std=1.0)
    with capture(model) as trace:
        model(torch.randint(4, 9, (1, 7)))
    (layer,) = trace.layers
    assert layer.kind == "MW, normalised, 2 sinks, tolerance 0.9"
    assert layer.sinks == 2
    assert (layer.window[..., :2] == 1).all()
    assert layer.window_tolerance == 0.9
    assert (layer.window == 0).any()
    assert not layer.weights[layer.window == 0].any()
    assert "window_tolerance" in trace.to_html()
