"""The sharding of the results of elementwise operations."""

from dataclasses import replace

from weft.graph.rows import THREEFRY, differing_axis
from weft.sharding.pair import Pair, Result, cannot, combined, kinds_of, scaled
from weft.sharding.sharding import ANY_FOLD, ZERO, Sharding, repeated, sharded, unknown


def general(pair: Pair) -> Result:
    """Any function of single entries."""
    shardings = pair.all_nonzero
    return combined(shardings) if all(sharding.is_exact for sharding in shardings) else scaled(shardings)


def same_entries(pair: Pair) -> Result:
    """Linear in one operand: copies and signs."""
    return pair.sharding(0)


def same_for_each(pair: Pair) -> Result:
    """Each result is one operand."""
    return list(pair.shardings)


def conversion(pair: Pair) -> Result:
    """Linear, except to booleans and from fractions to integers."""
    source, dest = (atom.aval.dtype.kind for atom in (pair.share.invars[0], pair.share.outvars[0]))
    linear = dest != "b" and source != "b" and (dest not in "iu" or source in "iu")
    return pair.sharding(0) if linear else general(pair)


def addition(pair: Pair) -> Result:
    return _homogeneous(pair, linear=True)


def homogeneous(pair: Pair) -> Result:
    """f(c x) = c f(x) for c > 0: the larger of two values, an absolute value."""
    return _homogeneous(pair, linear=False)


def _homogeneous(pair: Pair, *, linear: bool) -> Sharding:
    shardings = [sharding for sharding in pair.shardings if sharding.kind != "zero"]
    if not shardings:
        return ZERO
    if linear and "partial" in kinds_of(shardings):
        shardings = [_as_partial(sharding) for sharding in shardings]
    if len({sharding.power for sharding in shardings}) > 1:
        return scaled(shardings)
    if linear and kinds_of(shardings) == {"partial"}:
        return shardings[0]
    # One number added to an array of zeros with a row for every environment: the rows are equal.
    return _with_power(repeated(combined(shardings), *pair.result()), shardings[0].power)


def _as_partial(sharding: Sharding) -> Sharding:
    """Equal parts add up to R times a part: a number such as env.num_envs is the sum of the replicas' numbers."""
    scaled = sharding.kind == "replicated" and not sharding.is_exact
    return replace(sharding, kind="partial", power=sharding.power + 1) if scaled else sharding


def comparison(pair: Pair) -> Result:
    """f(c x) = f(x) for c > 0."""
    result = _homogeneous(pair, linear=False)
    return general(pair) if result.kind == "zero" else _with_power(result, 0)


def multiplication(pair: Pair) -> Result:
    one, other = pair.shardings
    return ZERO if "zero" in kinds_of(pair.shardings) else _product(one, other, one.power + other.power)


def division(pair: Pair) -> Result:
    one, other = pair.sharding(0), pair.nonzero(1)
    if one.kind == "zero":
        return ZERO
    if pair.share.outvars[0].aval.dtype.kind in "iu":
        return general(pair)  # rounds
    return combined([one, other]) if other.kind == "partial" else _product(one, other, one.power - other.power)


def _product(one: Sharding, other: Sharding, power: int) -> Sharding:
    if kinds_of([one, other]) == {"partial", "replicated"}:
        return Sharding("partial", power=power)
    return _with_power(combined([one, other]), power)


def power_of(pair: Pair) -> Result:
    sharding = pair.sharding(0)
    exponent = 2 if pair.name == "square" else pair.params["y"]
    return general(pair) if sharding.kind == "zero" else _with_power(combined([sharding]), sharding.power * exponent)


def selection(pair: Pair) -> Result:
    """Entries of the cases, chosen by the first operand."""
    choice, values = pair.nonzero(0), [sharding for sharding in pair.shardings[1:] if sharding.kind != "zero"]
    if not choice.is_exact:
        return scaled([choice])
    if not values:
        return ZERO
    if len({sharding.power for sharding in values}) > 1:
        return scaled(values)
    if kinds_of(values) == {"partial"} and choice.kind == "replicated":
        return values[0]
    return _with_power(combined([choice, *values]), values[0].power)


def _with_power(sharding: Sharding, power: int) -> Sharding:
    return sharding if sharding.is_unknown else replace(sharding, power=power)


def iota(pair: Pair) -> Result:
    """Numbers along an axis. Numbers of rows are calls marked `rows` (see `weft.graph.rows`)."""
    axis = differing_axis(*pair.result())
    if axis is None or axis == pair.params["dimension"]:
        return unknown("counts the rows of one replica")
    return sharded(axis, ANY_FOLD)


def draw(pair: Pair) -> Result:
    """A draw with a key for each row. Draws of rows with one key are calls marked `rows` (see `weft.graph.rows`)."""
    sharding = pair.sharding(0)
    if sharding.kind != "sharded" or not sharding.is_exact:
        return cannot(pair, sharding)
    if pair.share.invars[0].aval.dtype.name != THREEFRY:
        return unknown(
            "is drawn with a key for each row, of a kind whose numbers depend on the number of rows: use keys of "
            "jax.random.key(seed, impl='threefry2x32')"
        )
    return sharding


def gamma(pair: Pair) -> Result:
    """Draws of a gamma distribution: one key for each entry."""
    key, shape = pair.nonzero(0), pair.nonzero(1)
    if key.kind == "replicated" and shape.kind == "sharded":
        return unknown("is drawn for all rows with one key: give `jax.random.gamma` a key for each row, with jax.vmap")
    return general(pair)


# fmt: off
GENERAL = (
    "exp", "exp2", "log", "log1p", "expm1", "tanh", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "asinh", "acosh", "atanh", "logistic", "erf", "erfc", "erf_inv", "lgamma", "digamma", "polygamma", "igamma",
    "igammac", "igamma_grad_a", "random_gamma_grad", "bessel_i0e", "bessel_i1e", "regularized_incomplete_beta",
    "zeta", "rsqrt", "sqrt", "cbrt", "floor", "ceil", "round", "is_finite", "not", "and", "or", "xor", "rem", "pow",
    "atan2", "nextafter", "population_count", "clz", "shift_left", "shift_right_logical", "shift_right_arithmetic",
    "clamp", "integer_pow", "complex", "conj", "bitcast_convert_type", "random_fold_in", "random_seed",
    "random_wrap", "random_unwrap", "threefry2x32", "nan_to_num",
)
# fmt: on
