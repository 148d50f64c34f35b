"""What is timed: the rows of the benchmark, ours and those of others."""

import importlib
from collections.abc import Callable
from typing import Any

import c_reference
import keras
import numpy as np
from cases import (
    BLOCK,
    COFFEE,
    GRU,
    LIMIT,
    LINEAR,
    LSTM,
    MAMBA,
    OURS,
    RNN,
    S6,
    S6_SCAN,
    TRANSFORMERS,
    Row,
    Shape,
    Unavailable,
    block_weights,
)
from keras import ops

from keras_coffee.layers import MambaMixer
from keras_coffee.ops import coffee_scan, linear_scan, selective_scan


class CoffeeCell(keras.layers.Layer):
    """One step of COFFEE for `keras.layers.RNN`, as one would write it."""

    def __init__(self, dim: int, n: int):
        super().__init__()
        self.dim, self.n = dim, n
        self.state_size, self.output_size = dim * n, dim

    def build(self, input_shape):
        shape = self.dim, self.n
        self.transition = self.add_weight(shape=shape, name="transition")
        self.gate = self.add_weight(shape=shape, name="gate")
        self.readout = self.add_weight(shape=shape, name="readout")
        self.built = True

    def call(self, inputs, states):
        state = ops.reshape(states[0], (-1, self.dim, self.n))
        delta = ops.sigmoid(self.gate * state)
        state = state + delta * (self.transition * state + inputs[..., None])
        outputs = ops.sum(self.readout * state, -1)
        return outputs, [ops.reshape(state, (-1, self.dim * self.n))]


class MambaCell(keras.layers.Layer):
    """One step of Mamba's recurrence, likewise. It takes u, Δ, B and C side by side."""

    def __init__(self, dim: int, n: int):
        super().__init__()
        self.dim, self.n = dim, n
        self.state_size, self.output_size = dim * n, dim

    def build(self, input_shape):
        self.transition = self.add_weight(shape=(self.dim, self.n), name="transition")
        self.skip = self.add_weight(shape=(self.dim,), name="skip")
        self.built = True

    def call(self, inputs, states):
        bounds = np.cumsum([self.dim, self.dim, self.n])
        source, delta, entry, exit_ = (x[:, None] for x in ops.split(inputs, bounds, -1))
        source, delta = ops.swapaxes(source, 1, 2), ops.swapaxes(delta, 1, 2)
        state = ops.reshape(states[0], (-1, self.dim, self.n))
        state = ops.exp(self.transition * delta) * state + delta * entry * source
        outputs = ops.sum(exit_ * state, -1) + self.skip * source[..., 0]
        return outputs, [ops.reshape(state, (-1, self.dim * self.n))]


def _layer(family: str, shape: Shape) -> keras.layers.Layer:
    """A layer of Keras with D·n states."""
    _, _, dim, n = shape
    if family == COFFEE:
        layer = keras.layers.RNN(CoffeeCell(dim, n), return_sequences=True, return_state=True)
    else:
        layer = getattr(keras.layers, family)(dim * n, return_sequences=True)
    layer.build((None, None, dim))
    return layer


def _keras_coffee(shape: Shape, mode: str) -> Callable[..., Any]:
    layer = _layer(COFFEE, shape)

    def scan(inputs, transition, gate, readout, initial_state):
        state = ops.reshape(initial_state, (-1, layer.cell.state_size))
        weights = transition, gate, readout
        (outputs, final_state), _ = layer.stateless_call(weights, [], inputs, initial_state=[state])
        return outputs, ops.reshape(final_state, ops.shape(initial_state))

    return _compiled(scan, mode)


def _keras_mamba(shape: Shape, mode: str) -> Callable[..., Any]:
    _, _, dim, n = shape
    layer = keras.layers.RNN(MambaCell(dim, n), return_sequences=True, return_state=True)
    layer.build((None, None, 2 * dim + 2 * n))

    def scan(inputs, delta, transition, input_matrix, output_matrix, skip):
        side_by_side = ops.concatenate([inputs, delta, input_matrix, output_matrix], -1)
        (outputs, state), _ = layer.stateless_call((transition, skip), [], side_by_side)
        return outputs, ops.reshape(state, (-1, dim, n))

    return _compiled(scan, mode)


def _mamba_block(shape: Shape, mode: str) -> Callable[..., Any]:
    _, _, dim, n = shape
    layer, names = MambaMixer(n), list(block_weights(dim, n))
    layer.build((None, None, dim))
    places = [names.index(x.name) for x in layer.trainable_variables]

    def block(inputs, *weights):
        return (layer.stateless_call([weights[i] for i in places], [], inputs)[0],)

    return _compiled(block, mode)


def _keras_layer(family: str) -> Callable[..., Any]:
    def make(shape, mode):
        layer = _layer(family, shape)
        # Seeds of dropout, which there is none of.
        others = [x.value for x in layer.non_trainable_variables]

        def scan(inputs, *weights):
            return (layer.stateless_call(weights, others, inputs)[0],)

        return _compiled(scan, mode)

    return make


def _compiled(scan: Callable[..., Any], mode: str, **options: Any) -> Callable[..., Any]:
    return getattr(reference(), mode)(scan, **options)


def reference() -> Any:
    return importlib.import_module(f"reference_{keras.config.backend()}")


def _of(scan: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return lambda shape, mode: _compiled(scan, mode, **options)


def _ours(recompute: bool) -> Callable[..., Any]:
    def scan(inputs, transition, gate, readout, initial_state):
        options = {"initial_state": initial_state, "recompute": recompute}
        return coffee_scan(inputs, transition, gate, readout, **options)

    return scan


def s6_by(scan: Callable[..., Any]) -> Callable[..., Any]:
    """S6 with its projections, as `S6Layer` has them, around a scan."""

    def s6(inputs, log_transition, input_projection, output_projection, step_projection):
        return scan(
            inputs,
            ops.softplus(ops.matmul(inputs, step_projection)),
            -ops.exp(log_transition),
            ops.matmul(inputs, input_projection),
            ops.matmul(inputs, output_projection),
        )

    return s6


def _ours_s6(recompute: bool) -> Callable[..., Any]:
    return s6_by(lambda *tensors: selective_scan(*tensors, recompute=recompute))


def _ours_selective(discretization: str) -> Callable[..., Any]:
    def scan(*tensors):
        return selective_scan(*tensors[:5], discretization=discretization, skip=tensors[5])

    return scan


def _ours_linear(decay, inputs, initial_state):
    return linear_scan(decay, inputs, initial_state=initial_state)[:1]


def _coffee_in_c(shape: Shape, mode: str) -> Any:
    return c_reference.Coffee(shape, keeps=mode == "training")


def _selective_in_c(discretization: str) -> Callable[[Shape, str], Any]:
    return lambda shape, mode: c_reference.Selective(shape, mode == "training", discretization)


def _linear_in_c(shape: Shape, mode: str) -> Any:
    batch, length, dim, n = shape
    return c_reference.Linear((batch, length, dim * n), keeps=mode == "training")


def _c(reference: Callable[[Shape, str], Any]) -> dict[str, Any]:
    """Options of a row that runs a class of `c_reference`."""

    def make(shape, mode):
        try:
            found = reference(shape, mode)
        except RuntimeError as error:
            raise Unavailable(str(error)) from None
        return found.training if mode == "training" else found.forward

    def nbytes(shape, mode):
        return reference(shape, mode).nbytes

    return {"make": make, "convert": np.ascontiguousarray, "nbytes": nbytes}


def _of_peer(make: Callable[..., Any]) -> Callable[..., Any]:
    """`make(peers, shape, mode)`, where the packages of others are installed."""

    def found(shape, mode):
        try:
            return make(importlib.import_module("torch_peers"), shape, mode)
        except ImportError as error:
            raise Unavailable(f"{error}; it comes with the extra `bench`") from None

    return found


def _mambapy(peers: Any, shape: Shape, mode: str) -> Callable[..., Any]:
    return _compiled(s6_by(peers.mambapy_scan()), mode)


def _mambapy_alone(peers: Any, shape: Shape, mode: str) -> Callable[..., Any]:
    return _compiled(peers.mambapy_mamba_scan(), mode)


def _transformers(peers: Any, shape: Shape, mode: str) -> Callable[..., Any]:
    return _compiled(peers.transformers_scan(), mode)


def _mambapy_block(peers: Any, shape: Shape, mode: str) -> Callable[..., Any]:
    return _compiled(peers.mambapy_block(shape), mode)


def _transformers_block(peers: Any, shape: Shape, mode: str) -> Callable[..., Any]:
    return _compiled(peers.transformers_block(shape), mode)


def all_rows() -> list[Row]:
    """The rows of this backend; of each family first the one that the others are compared with."""
    backend, training = reference(), ("training",)

    def row(name: str, family: str, make: Callable[..., Any], **options: Any) -> Row:
        return Row(name, family, make, **{"convert": ops.convert_to_tensor} | options)

    coffee = [
        row(OURS, COFFEE, _of(_ours(False))),
        row(f"{OURS}, recompute", COFFEE, _of(_ours(True)), modes=training),
        row(LIMIT, COFFEE, **_c(_coffee_in_c)),
        row(f"loop: {backend.LOOP}", COFFEE, _of(backend.coffee_scan), loops=True),
        row(RNN, COFFEE, _keras_coffee, loops=True),
    ]
    s6 = [
        row(OURS, S6, _of(_ours_s6(False))),
        row(f"{OURS}, recompute", S6, _of(_ours_s6(True)), modes=training),
        row("loop", S6, _of(s6_by(backend.selective_scan)), loops=True),
    ]
    s6_scan = [
        row(OURS, S6_SCAN, _of(_ours_selective("zoh"))),
        row(LIMIT, S6_SCAN, **_c(_selective_in_c("zoh"))),
    ]
    mamba = [
        row(OURS, MAMBA, _of(_ours_selective("mamba"))),
        row(LIMIT, MAMBA, **_c(_selective_in_c("mamba"))),
        row(RNN, MAMBA, _keras_mamba, loops=True),
    ]
    block = [row(OURS, BLOCK, _mamba_block)]
    linear = [
        row(OURS, LINEAR, _of(_ours_linear)),
        row(LIMIT, LINEAR, **_c(_linear_in_c)),
    ]
    keras_layers = [
        row(f"keras.layers.{family}", family, _keras_layer(family), loops=True)
        for family in (GRU, LSTM)
    ]
    match keras.config.backend():
        case "tensorflow":
            compiled = _of(_ours(False), jit_compile=True)
            coffee.insert(2, row(f"{OURS}, in a graph under XLA", COFFEE, compiled, modes=training))
        case "torch":
            pararnn = _of_peer(lambda peers, shape, mode: peers.pararnn(shape, mode))
            coffee.append(row("pararnn", COFFEE, pararnn, loops=True, may_miss=True))
            s6.append(row("mambapy", S6, _of_peer(_mambapy)))
            mamba.append(row("mambapy", MAMBA, _of_peer(_mambapy_alone)))
            mamba.append(row(TRANSFORMERS, MAMBA, _of_peer(_transformers), once=True))
            block.append(row("mambapy", BLOCK, _of_peer(_mambapy_block)))
            block.append(row(TRANSFORMERS, BLOCK, _of_peer(_transformers_block), once=True))
        case "jax":
            mamba.append(row("lax.associative_scan", MAMBA, _of(backend.mamba_scan)))
    return coffee + s6 + s6_scan + mamba + block + linear + keras_layers
