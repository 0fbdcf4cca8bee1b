"""The rule of every operation: from the shardings of its operands to those of its results."""

from collections.abc import Callable

from weft.sharding import elementwise as each
from weft.sharding import indexing, reductions, shapes
from weft.sharding.pair import Pair, Result

RULES: dict[str, Callable[[Pair], Result]] = {
    **dict.fromkeys(each.GENERAL, each.general),
    **dict.fromkeys(
        ("neg", "copy", "copy_p", "real", "imag", "stop_gradient", "reduce_precision", "name"), each.same_entries
    ),
    **dict.fromkeys(("add", "sub", "add_any"), each.addition),
    **dict.fromkeys(("max", "min", "abs"), each.homogeneous),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "sign", "eq_to", "le_to", "lt_to"), each.comparison),
    **dict.fromkeys(("integer_pow", "square"), each.power_of),
    **dict.fromkeys(("optimization_barrier", "tie"), each.same_for_each),
    **dict.fromkeys(("random_bits", "random_split"), each.draw),
    "random_gamma": each.gamma,
    "convert_element_type": each.conversion,
    "mul": each.multiplication,
    "div": each.division,
    "select_n": each.selection,
    "iota": each.iota,
    "broadcast_in_dim": shapes.broadcast,
    "reshape": shapes.reshape,
    "transpose": shapes.transpose,
    "squeeze": shapes.squeeze,
    "rev": shapes.reverse,
    "pad": shapes.pad,
    "concatenate": shapes.concatenate,
    "stack": shapes.stack,
    "unstack": shapes.unstack,
    "split": shapes.split,
    "tile": shapes.tile,
    "reduce_sum": reductions.reduce_sum,
    **dict.fromkeys(
        ("reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_xor", "reduce_prod"), reductions.reduction
    ),
    **dict.fromkeys(("argmax", "argmin"), reductions.reduction),
    **dict.fromkeys(("cumprod", "cummax", "cummin", "cumlogsumexp"), reductions.along("axis")),
    "cumsum": reductions.cumsum,
    "sort": reductions.along("dimension"),
    **dict.fromkeys(("top_k", "approx_top_k"), reductions.top_k),
    "dot_general": reductions.dot_general,
    "conv_general_dilated": reductions.convolution,
    **dict.fromkeys(("reduce_window_sum", "reduce_window_max", "reduce_window_min"), reductions.window),
    "select_and_scatter_add": reductions.window_scatter,
    **dict.fromkeys(("cholesky", "triangular_solve", "lu", "qr", "eigh", "eig", "svd", "schur"), reductions.batched(2)),
    "householder_product": reductions.batched(2),
    "lu_pivots_to_permutation": reductions.batched(1),
    "fft": lambda pair: reductions.batched(len(pair.params["fft_lengths"]))(pair),
    "slice": indexing.static_slice,
    "dynamic_slice": indexing.dynamic_slice,
    "dynamic_update_slice": indexing.dynamic_update_slice,
    "gather": indexing.gather,
    **dict.fromkeys(("scatter", "scatter_add", "scatter-add", "scatter_mul", "scatter-mul"), indexing.scatter),
    **dict.fromkeys(("scatter_min", "scatter-min", "scatter_max", "scatter-max"), indexing.scatter),
}
