"""The kernels of `backend/cpu` as custom calls of XLA."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from keras_coffee.backend.cpu import compiler, macros
from keras_coffee.backend.cpu.blocks import Blocks


def is_available():
    """Whether there is a compiler for them."""
    return compiler.is_available("coffee_xla.c", jax.ffi.include_dir(), **macros.coffee(32))


def coffee_forward(inputs, weights, *mask_and_state, keep, **options):
    library = _coffee_library(inputs, mask_and_state, options)
    tensors = inputs, weights, *mask_and_state
    return _forward(library, weights, keep, tensors)


def coffee_backward(
    grad_outputs, grad_final, kept, inputs, weights, *mask_and_state, keep, **options
):
    *mask, _ = mask_and_state
    library = _coffee_library(inputs, mask_and_state, options)
    blocks = _blocks(inputs, weights, keep)
    tensors = grad_outputs, grad_final, kept, inputs, weights, *mask
    shapes = inputs.shape, (blocks.rows, *weights.shape), grad_final.shape
    grad_inputs, grad_weights, grad_initial = _call(library, "backward", blocks, shapes, tensors)
    return [grad_inputs, grad_weights.sum(0), *map(jnp.zeros_like, mask), grad_initial]


def selective_forward(inputs, delta, transition, *tensors, keep, discretization):
    library = _selective_library(inputs, tensors[:2], discretization)
    tensors = inputs, delta, transition, *tensors
    return _forward(library, transition, keep, tensors)


def selective_backward(
    grad_outputs, grad_final, kept, inputs, delta, transition, *tensors, keep, discretization
):
    *matrices, _ = tensors
    library = _selective_library(inputs, matrices, discretization)
    blocks = _blocks(inputs, transition, keep)
    tensors = grad_outputs, grad_final, kept, inputs, delta, transition, *matrices
    # Blocks beside each other have parts of a sum over features; below each other, over sequences.
    parts = {3: blocks.columns, 2: blocks.rows}
    sums = [(parts[x.ndim], *x.shape) for x in (transition, *matrices)]
    shapes = inputs.shape, inputs.shape, *sums, grad_final.shape
    results = _call(library, "backward", blocks, shapes, tensors)
    return [*results[:2], *(x.sum(0) for x in results[2:-1]), results[-1]]


def _forward(library, weights, keep, tensors):
    inputs, initial_state = tensors[0], tensors[-1]
    blocks = _blocks(inputs, weights, keep)
    shapes = inputs.shape, initial_state.shape, (blocks.kept,)
    return _call(library, "forward", blocks, shapes, tensors)


def _call(library, direction, blocks, shapes, tensors):
    name = f"{pathlib.Path(library._name).stem}_{direction}"
    function = getattr(library, f"{direction}_call")
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(function), platform="cpu")
    types = [jax.ShapeDtypeStruct(shape, tensors[0].dtype) for shape in shapes]
    return jax.ffi.ffi_call(name, types)(*tensors, sizes=np.array(blocks.sizes, "int64"))


def _blocks(inputs, weights, keep):
    batch, length, dim = inputs.shape
    return Blocks(batch, length, dim, weights.shape[-1], keep)


def _coffee_library(inputs, mask_and_state, options):
    has_mask = len(mask_and_state) > 1
    return _library("coffee_xla.c", macros.coffee(_bits(inputs), has_mask=has_mask, **options))


def _selective_library(inputs, matrices, discretization):
    input_varies, output_varies = (m.ndim == 3 for m in matrices)
    options = macros.selective(
        _bits(inputs),
        discretization=discretization,
        input_varies=input_varies,
        output_varies=output_varies,
    )
    return _library("selective_xla.c", options)


def _library(source, options):
    return compiler.library(source, jax.ffi.include_dir(), **options)


def _bits(x):
    return {"float32": 32, "float64": 64}[np.dtype(x.dtype).name]
