"""The checker accepts the graphs that `build_graph` returns and detects malformed ones."""

from dataclasses import replace

import jax.numpy as jnp
import pytest
from jax import lax

from tests.toys import env_of, layout_of, on, toy
from weft.graph.build import build_graph
from weft.graph.graph import Graph, Value, check, walk
from weft.graph.trace import trace


@pytest.fixture
def graph() -> Graph:
    def loop(s):
        def tick(x, _):
            return on("b")(on("a")(x)), x

        x, xs = lax.scan(tick, s["x"], length=3)
        return {"x": x + xs.sum(0)}

    return build_graph(trace(toy({"x": jnp.zeros(4)}, loop), env_of(4), length=2), layout_of(one="a", two="b"))


def test_walk_counts_the_executions_of_each_node(graph: Graph) -> None:
    check(graph)
    times = {node.key: count for node, count in walk(graph) if node.key}
    assert times == {"loop": 1, "loop/loop": 2, "loop/loop/a": 6, "loop/loop/b": 6}


def test_bytes_are_the_number_of_elements_times_the_item_size() -> None:
    assert Value(jnp.zeros((3, 5), jnp.int16), "x").bytes == 30
    assert Value(jnp.zeros((), jnp.bool_), "x").bytes == 1


def test_a_value_produced_twice_is_detected(graph: Graph) -> None:
    with pytest.raises(AssertionError, match="produced twice"):
        check(replace(graph, nodes=(*graph.nodes, graph.nodes[-1])))


def test_a_value_used_before_it_is_produced_is_detected(graph: Graph) -> None:
    with pytest.raises(AssertionError, match="before it is produced"):
        check(replace(graph, nodes=()))
    body = graph.nodes[0].body
    assert body is not None
    with pytest.raises(AssertionError, match="before it is produced"):
        check(replace(graph, nodes=(replace(graph.nodes[0], body=replace(body, nodes=body.nodes[::-1])),)))


def test_a_carry_that_changes_its_shape_or_dtype_is_detected(graph: Graph) -> None:
    body = graph.nodes[0].body
    assert body is not None
    for array, message in ((jnp.zeros(5), "shape"), (jnp.zeros(4, jnp.int32), "dtype")):
        other = Value(array, "x", array)
        with pytest.raises(AssertionError, match=f"changes its {message}"):
            check(replace(graph, nodes=(replace(graph.nodes[0], body=replace(body, outputs=(other,))),)))


def test_two_nodes_with_the_same_key_are_detected(graph: Graph) -> None:
    body = graph.nodes[0].body
    assert body is not None
    twin = replace(body.nodes[0], outputs=tuple(Value(v.aval, v.name) for v in body.nodes[0].outputs))
    with pytest.raises(AssertionError, match="share a key"):
        check(replace(graph, nodes=(replace(graph.nodes[0], body=replace(body, nodes=(*body.nodes, twin))),)))
