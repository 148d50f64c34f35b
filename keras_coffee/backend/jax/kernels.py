"""What runs a scan on which platform: primitives of JAX, lowered differently for each.

    forward(inputs, *tensors, initial_state, keep) -> outputs, final state, kept states
    backward(grad_outputs, grad_final, kept states, inputs, *tensors, initial_state, keep)
        -> gradients

States are kept before every `keep`-th step, in one flat array, none if `keep` is 0; in the order
(chunks, B, D, n), but for kernels in Pallas. The gradients
are those of all arguments of `forward`. The tensors of "coffee" are its weights, stacked
`(W, D, n)` as λ, w, C and then b and w_γ where there are any, and the mask if there is one; those
of "selective" are Δ, λ, B and C.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from keras_coffee.backend.cpu import blocks
from keras_coffee.backend.jax import cpu_kernels, gpu_kernels, portable


def _primitive(name, transformed=None):
    """A primitive whose definition is the function `name` of `portable`.

    `transformed` has the same results, and is what is differentiated and mapped in its place.
    """
    definition = getattr(portable, name)
    transformed = transformed or definition
    primitive = Primitive(f"keras_coffee_{name}")
    primitive.multiple_results = True

    @functools.partial(jax.jit, static_argnames=("options",))
    def evaluate(*tensors, options):
        return primitive.bind(*tensors, **dict(options))

    @primitive.def_impl
    def _(*tensors, **options):
        # Nothing else runs it, so that it must be compiled even where nothing should be.
        with jax.disable_jit(False):
            return evaluate(*tensors, options=tuple(options.items()))

    @primitive.def_abstract_eval
    def _(*tensors, **options):
        shapes = jax.eval_shape(functools.partial(definition, **options), *tensors)
        return [tensors[0].update(shape=x.shape, dtype=x.dtype) for x in shapes]

    def differentiate(tensors, tangents, **options):
        tangents = tuple(ad.instantiate_zeros(x) for x in tangents)
        return jax.jvp(functools.partial(transformed, **options), tuple(tensors), tangents)

    def batch(tensors, axes, **options):
        results = jax.vmap(functools.partial(transformed, **options), axes)(*tensors)
        return results, [0] * len(results)

    ad.primitive_jvps[primitive] = differentiate
    batching.primitive_batchers[primitive] = batch
    mlir.register_lowering(primitive, mlir.lower_fun(definition))
    for platform, kernels in (("cpu", cpu_kernels), ("cuda", gpu_kernels)):
        on_cpu = platform == "cpu"
        kernel = getattr(cpu_kernels, name) if on_cpu else functools.partial(_on_gpu, name)
        rule = functools.partial(_lower, definition, kernels.is_available, kernel)
        mlir.register_lowering(primitive, rule, platform=platform)
    return primitive


def _from_the_start(name):
    """The gradients, with the states computed again: a kernel may have kept its own, its way."""

    def gradients(grad_outputs, grad_final, kept, *tensors, **options):
        *_, kept = getattr(portable, f"{name}_forward")(*tensors, **options)
        backward = getattr(portable, f"{name}_backward")
        return backward(grad_outputs, grad_final, kept, *tensors, **options)

    return gradients


def _on_gpu(name, *tensors, **options):
    """Calls a kernel in `gpu_kernels` with what the primitive `name` has for arguments."""
    recurrence, direction = name.split("_")
    forward, backward = gpu_kernels.KERNELS[recurrence]
    grads, tensors = (tensors[:3], tensors[3:]) if direction == "backward" else ((), tensors)
    sequences, weights, options = _arguments(recurrence, tensors[:-1], options)
    if direction == "forward":
        return list(forward(sequences, weights, tensors[-1], **options))
    results = list(backward(*grads, sequences, weights, **options))
    if recurrence == "coffee":
        results[1] = [jnp.stack([w for w in results[1] if w is not None])]
        results[0] = [
            results[0][0],
            *results[1],
            *(jnp.zeros_like(m) for m in sequences[1:] if m is not None),
        ]
        return [*results[0], results[2]]
    (grad_inputs, grad_delta, *varying), (grad_transition, *fixed), grad_initial = results
    matrices = [f if v is None else v for v, f in zip(varying, fixed, strict=True)]
    return [grad_inputs, grad_delta, grad_transition, *matrices, grad_initial]


def _arguments(recurrence, tensors, options):
    if recurrence == "coffee":
        inputs, stacked, *mask = tensors
        options = dict(options)
        transition, gate, readout, *optional = stacked
        has = [options.pop("has_input_matrix"), options.pop("has_output_gate")]
        weights = [transition, gate, readout, *(optional.pop(0) if h else None for h in has)]
        return [inputs, mask[0] if mask else None], weights, options
    inputs, delta, transition, *matrices = tensors
    varying = [m if m.ndim == 3 else None for m in matrices]
    fixed = [m if m.ndim == 2 else None for m in matrices]
    return [inputs, delta, *varying], [transition, *fixed], options


def _lower(definition, is_available, kernel, context, *tensors, **options):
    is_chosen = implementation(context) == "kernel" and is_available()
    return mlir.lower_fun(kernel if is_chosen else definition)(context, *tensors, **options)


def implementation(context):
    """`"kernel"` or `"portable"`, for the program that is lowered.

    A program that is exported must run where this package is not, and XLA can't divide a kernel
    among devices.
    """
    module = context.module_context
    is_exported = module.lowering_parameters.for_export
    return "portable" if is_exported or _devices(module.axis_context) > 1 else "kernel"


def _devices(axes):
    """Devices among which XLA divides a program. Under `shard_map` and `pmap` it is divided."""
    if not hasattr(axes, "mesh"):
        return getattr(axes, "num_devices", 1)
    sizes = axes.mesh.shape.items()
    return math.prod(size for axis, size in sizes if axis not in axes.manual_axes)


def usual_keep():
    """Steps between two kept states where nobody asks for `recompute`.

    Decided when a program is traced, for the platform that it will most likely run on.
    """
    is_cpu = jax.default_backend() == "cpu" and cpu_kernels.is_available()
    return blocks.KEEP if is_cpu else 1


RECURRENCES = "coffee", "selective"
forward = {name: _primitive(f"{name}_forward") for name in RECURRENCES}
backward = {name: _primitive(f"{name}_backward", _from_the_start(name)) for name in RECURRENCES}
